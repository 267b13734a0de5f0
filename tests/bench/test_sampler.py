"""The sampler, as the benchmark times it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sampler import KINDS, MIXED, measure
from seedance_server.engine.model_loader import load_model
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_sampler_is_timed_within_steps_for_every_kind_of_parameter(tmp_path: Path) -> None:
    """A part is no longer than the whole, and each kind runs to its end."""
    model = load_model(str(build_tiny_model("llama", tmp_path)))
    for kind in (*KINDS, MIXED):
        taken = measure(model, kind, len(KINDS) if kind == MIXED else 1, 2, kv_memory_bytes=2**23)
        assert 0 < taken["sampler"] < taken["step"]
