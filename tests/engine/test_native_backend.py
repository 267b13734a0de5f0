import pytest
import torch

from seedance_server.engine import native_backend
from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.kernels.linear import PackedLinear
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.native_backend import find_obstacle
from tests.engine.driving import drive, make_engine, make_request
from tests.tiny_models import KINDS


@pytest.fixture
def load_native(tiny_directory):
    """Loads a tiny model in bfloat16 with the native kernels, where they run."""
    try:
        open_library()
    except KernelsMissing as missing:
        pytest.skip(str(missing))
    return lambda kind: load_model(str(tiny_directory(kind)), dtype="bfloat16", kernels="native")


class _Model:
    device, dtype = torch.device("cpu"), torch.bfloat16


def test_obstacles_are_told_in_words(monkeypatch):
    """The line in the log says why the kernels aren't used, so nobody has to guess."""
    model = _Model()
    model.dtype = torch.float32
    assert "float32" in find_obstacle(model)
    model = _Model()
    model.device = torch.device("meta")
    assert "meta" in find_obstacle(model)

    def missing():
        raise KernelsMissing("the processor lacks avx512_bf16")

    monkeypatch.setattr(native_backend, "open_library", missing)
    assert find_obstacle(_Model()) == "the processor lacks avx512_bf16"


@pytest.mark.parametrize("kind", KINDS)
def test_linear_layers_are_swapped_and_their_weights_let_go_of(kind, load_native):
    """One copy of the weights: a model of half the memory runs on the same machine."""
    model = load_native(kind).model
    assert not [module for module in model.modules() if type(module) is torch.nn.Linear]
    assert [module for module in model.modules() if isinstance(module, PackedLinear)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_same_bits_alone_and_among_others(kind, load_native):
    """Neighbours, chunks and the order of arrival change nothing, logits included, well beyond the window."""
    model = load_native(kind)
    prompts = [tuple((7 * n + 3 * i) % 380 for i in range(1 + 9 * n % 61)) for n in range(24)]

    def requests(only=None):
        return [
            make_request(n, prompt, max_tokens=30, logprobs=True)
            for n, prompt in enumerate(prompts)
            if only in (None, n)
        ]

    together = drive(make_engine(model), requests())
    chunked = drive(make_engine(model, prefill_budget_tokens=5, max_sequences=7), requests())
    for n in range(len(prompts)):
        alone = drive(make_engine(model), requests(n))[n]
        for other in (together[n], chunked[n]):
            assert other.token_ids == alone.token_ids
            assert other.logprobs == alone.logprobs
