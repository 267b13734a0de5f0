"""What the engine does on an NVIDIA GPU, against a CPU's float32; without one, all of it is skipped.

These tests stand alone: `python -m pytest -c tests/gpu/pytest.ini tests/gpu` needs neither Hypothesis nor
trio, so that a machine with PyTorch, Transformers and the engine's own few packages can run them.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from seedance_server.engine.model_loader import LoadedModel, load_model
from tests.engine.driving import NEW_TOKENS, PROMPTS, generate_alone
from tests.tiny_models import KINDS, TinyKind, build_tiny_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is in this folder where there is no GPU."""
    if not torch.cuda.is_available():
        for item in items:
            if Path(item.path).parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def exact_products() -> None:
    """Float32 is multiplied as such, whatever the environment says: the CPU's answers are compared with."""
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU."""
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyKind], Path]:
    """The directory of a tiny model."""
    return cache(lambda kind: build_tiny_model(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope="session")
def load_tiny(tiny_directory: Callable[[TinyKind], Path]) -> Callable[[TinyKind], LoadedModel]:
    """A loaded tiny model, on the GPU as any model where there is one."""
    return cache(lambda kind: load_model(str(tiny_directory(kind))))


@pytest.fixture(scope="session")
def reference(tiny_directory: Callable[[TinyKind], Path]) -> dict[TinyKind, list[list[int]]]:
    """Greedy answers of Transformers to `PROMPTS`, on the CPU in float32, each prompt alone."""

    def answers(kind: TinyKind) -> list[list[int]]:
        stock: Any = AutoModelForCausalLM.from_pretrained(tiny_directory(kind)).eval()
        return [generate_alone(stock, prompt, NEW_TOKENS) for prompt in PROMPTS]

    return {kind: answers(kind) for kind in KINDS}
