"""Each source file has its own test file under the same name, and each test file has its source."""

from __future__ import annotations

import pytest

from tests.architecture.source_tree import PACKAGES, ROOT, Source, sources

# Sources without behaviour of their own: nothing in them could break that a test of theirs would see.
WITHOUT_BEHAVIOUR = {
    "seedance_server/engine/engine_statistics.py": "a plain value",
    "seedance_server/event_sink.py": "protocols and a plain value; tested on who keeps them",
    "seedance_server/journal/interface.py": "a protocol; what it promises is tested on both that keep it",
    "seedance_server/journal/operation.py": "two plain values",
    "seedance_sdk/cli/finding.py": "plain values",
    "wire/seedance_wire/frames.py": "plain values",
    "wire/seedance_wire/user_event.py": "a plain value",
}

# Tests of something other than a source file, and where that lies.
OTHER_SUBJECTS = {
    "tests/wire/test_compatibility.py": "wire/compatibility.py",
    "tests/wire/test_fuzz_corpus.py": "fuzz/corpus",
    "tests/wire/test_seedance_pb2.py": "wire/seedance.proto",
    "tests/wire/test_specification.py": "wire/specification.py",
    "tests/wire/test_vectors.py": "wire/vectors",
}


@pytest.mark.parametrize("source", [s for s in sources() if not s.is_package], ids=lambda source: source.name)
def test_source_has_a_test_of_its_name(source: Source):
    """Whoever changes a file finds its tests without searching."""
    if source.name in WITHOUT_BEHAVIOUR:
        assert not (ROOT / source.test).exists(), "it has a test: take it off the list"
    else:
        assert (ROOT / source.test).exists(), f"{source.name} wants {source.test}"


@pytest.mark.parametrize("folder", PACKAGES.values())
def test_test_file_has_a_source_of_its_name(folder: str):
    """A test that outlived its source, or lies in the wrong folder, is found."""
    wanted = {source.test for source in sources()}
    wanted |= {test for test, subject in OTHER_SUBJECTS.items() if (ROOT / subject).exists()}
    present = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("test_*.py")}
    assert present - wanted == set()


def test_every_package_is_under_these_rules():
    """A new package joins the rules of the house on the day it is made."""
    found = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("seedance_*/**/__init__.py")}
    found |= {
        path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("wire/seedance_*/**/__init__.py")
    }
    assert {name for name in found if "build" not in name} == set(PACKAGES)
