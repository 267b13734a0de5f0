"""Tiny models, built and loaded once per run, and the same models as Transformers runs them."""

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


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyKind], Path]:
    """The directory of a tiny model. Read only: tests share it."""
    return cache(lambda kind: build_tiny_model(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope="session")
def load_tiny(tiny_directory: Callable[[TinyKind], Path]) -> Callable[[TinyKind], LoadedModel]:
    """A loaded tiny model. Engines over it may be made at will: their caches are their own."""
    return cache(lambda kind: load_model(str(tiny_directory(kind))))


@pytest.fixture(scope="session")
def stock_tiny(tiny_directory: Callable[[TinyKind], Path]) -> Callable[[TinyKind], Any]:
    """A tiny model as Transformers runs it."""
    return cache(lambda kind: AutoModelForCausalLM.from_pretrained(tiny_directory(kind)).eval())


@pytest.fixture(scope="session")
def reference(stock_tiny: Callable[[TinyKind], Any]) -> dict[TinyKind, list[list[int]]]:
    """Greedy answers of Transformers to `PROMPTS`, each prompt alone."""
    return {
        kind: [generate_alone(stock_tiny(kind), prompt, NEW_TOKENS) for prompt in PROMPTS] for kind in KINDS
    }
