"""The fuzz targets on their corpus, without the fuzzer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_target_holds_on_its_corpus(path: Path) -> None:
    """What was ever found to matter is tried each time."""
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=100))
def test_target_holds_on_random_bytes(name: str, data: bytes) -> None:
    """The invariant, unguided."""
    TARGETS[name](data)


def test_corpus_has_inputs_for_each_target_and_no_other() -> None:
    """A target without a start is slow to find anything; a directory without a target is dead."""
    assert {path.parent.name for path in INPUTS} == set(TARGETS)
