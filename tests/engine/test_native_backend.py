import gc
import weakref

import pytest
import torch
from transformers import AutoModelForCausalLM

from seedance_server.engine import native_backend
from seedance_server.engine.candidates import BlockPasses
from seedance_server.engine.errors import KernelsUnavailable
from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.kernels.linear import PackedLinear
from seedance_server.engine.kernels.weight_memory import WeightMemory
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.native_backend import find_obstacle
from seedance_server.engine.sequence import FinishReason
from tests.engine.driving import drive, make_engine, make_request
from tests.tiny_models import KINDS

# In units of the spread (standard deviation) of a row's logits: bfloat16 rounds each to 1/256 of its size,
# and layers add to that. A token that loses by more than this in float32 is a wrong one.
MARGIN = 0.1


@pytest.fixture(params=["whole", "in parts"])
def load_native(request, tiny_directory, monkeypatch):
    """Loads a tiny model in bfloat16 with the native kernels, as a whole or module by module."""
    try:
        open_library()
    except KernelsMissing as missing:
        pytest.skip(str(missing))
    if request.param == "in parts":
        monkeypatch.setattr(native_backend, "find_decoder_obstacle", lambda _model: "not today")
    return lambda kind, quantize="none", kernels="native": load_model(
        str(tiny_directory(kind)), dtype="bfloat16", kernels=kernels, quantize=quantize
    )


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


def test_8_bits_need_a_feature_that_bfloat16_does_not(monkeypatch):
    """A processor without it is told apart before its first illegal instruction."""
    monkeypatch.setattr(native_backend, "open_library", lambda: None)
    monkeypatch.setattr(native_backend, "missing_features", lambda *, required: [*required])
    assert find_obstacle(_Model()) is None
    assert find_obstacle(_Model(), "int8") == "the processor lacks avx512vbmi"


def test_8_bits_halve_the_weights_and_are_another_model(load_native):
    """An answer that was begun with the weights as they are never goes on with those of 8 bits."""
    plain, narrow = load_native("gemma3"), load_native("gemma3", "int8")
    assert plain.backend._memory.size_bytes > 1.8 * narrow.backend._memory.size_bytes
    assert plain.fingerprint != narrow.fingerprint
    assert (plain.backend.name + "-int8", plain.computing + ", its weights as int8") == (
        narrow.backend.name,
        narrow.computing,
    )


@pytest.mark.slow
def test_answers_of_8_bits_are_the_same_bits_alone_and_among_others(load_native):
    """Numbers are widened to the same bfloat16 for any number of rows."""
    model = load_native("gemma3", "int8")
    prompts = [tuple(3 + (7 * n + 3 * i) % 380 for i in range(1 + 9 * n % 61)) for n in range(14)]
    requests = [make_request(n, prompt, max_tokens=6, logprobs=True) for n, prompt in enumerate(prompts)]
    together = drive(make_engine(model), requests)
    for request in requests[::5]:
        alone = drive(make_engine(model, prefill_budget_tokens=5), [request])[request.id]
        assert alone.token_ids == together[request.id].token_ids
        assert alone.logprobs == together[request.id].logprobs


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_more_memory_is_touched_beforehand_than_is_packed_into(kind, quantize, load_native, monkeypatch):
    """It is touched while the tokenizer is read, when nothing has been packed yet."""
    reserved = []
    monkeypatch.setattr(WeightMemory, "reserve", lambda _memory, size: reserved.append(size))
    model = load_native(kind, quantize)
    assert len(reserved) == 1
    assert 0 < reserved[0] <= model.backend._memory.size_bytes


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_memory_is_touched_beforehand_only_where_originals_have_room_beside_it(
    quantize, load_native, monkeypatch
):
    """Where weights fit once they are packed one by one, and each original goes: a start takes no more."""
    reserved, available = [], [2**40]
    monkeypatch.setattr(WeightMemory, "reserve", lambda _memory, size: reserved.append(size))
    monkeypatch.setattr(native_backend, "available_memory", lambda _device: available[0])
    load_native("gemma3", quantize)
    [packed] = reserved
    originals = packed * (2 if quantize == "int8" else 1)
    for room, calls in ((originals + packed, 2), (originals + packed - 1, 2), (0, 2)):
        available[0] = room
        model = load_native("gemma3", quantize)
        assert len(reserved) == calls
        assert model.backend._memory.size_bytes >= packed, "it is packed all the same"


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_are_the_only_ones(kind, load_native):
    """One copy of the weights: a model of twice the size runs on the same machine."""
    model = load_native(kind).model
    assert not [module for module in model.modules() if type(module) is torch.nn.Linear]
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
    whole = not any(isinstance(module, PackedLinear) for module in model.modules())
    assert matrices == ([] if whole else ["model.embed_tokens.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_same_bits_alone_and_among_others(kind, load_native):
    """Neighbours, chunks and the order of arrival change nothing, logits included, well beyond the window."""
    model = load_native(kind)
    prompts = [tuple(3 + (7 * n + 3 * i) % 380 for i in range(1 + 9 * n % 61)) for n in range(24)]

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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_the_best_of_float32_within_rounding(kind, load_native, tiny_directory):
    """Each token is the stock model's own choice, or one that float32 puts within a stated margin of it."""
    model = load_native(kind)
    exact = AutoModelForCausalLM.from_pretrained(tiny_directory(kind), dtype=torch.bfloat16).float().eval()
    prompts = [tuple(3 + (11 * n + 5 * i) % 380 for i in range(1 + 13 * n % 71)) for n in range(8)]
    requests = [make_request(n, prompt, max_tokens=40) for n, prompt in enumerate(prompts)]
    for n, answer in drive(make_engine(model), requests).items():
        ids = [*prompts[n], *answer.token_ids]
        with torch.inference_mode():
            logits = exact(input_ids=torch.tensor([ids])).logits[0, len(prompts[n]) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert ((logits.amax(-1) - chosen) / logits.std(-1)).max() <= MARGIN


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_last_position_of_the_context_is_reached(kind, load_native, tiny_directory):
    """Rotary tables, rings and block tables hold to the model's limit, far beyond a window."""
    engine = make_engine(load_native(kind), prefill_budget_tokens=64)
    prompt = [3 + 7 * n % 380 for n in range(440)]
    answer = drive(engine, [make_request(0, prompt, ignore_eos=True)])[0]
    assert (answer.finish.reason, len(answer.token_ids)) == (FinishReason.LENGTH, 512 - 440)
    exact = AutoModelForCausalLM.from_pretrained(tiny_directory(kind), dtype=torch.bfloat16).float().eval()
    with torch.inference_mode():
        logits = exact(torch.tensor([[*prompt, *answer.token_ids[:-1]]])).logits[0, 439:]
    chosen = logits.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    assert ((logits.amax(-1) - chosen) / logits.std(-1)).max() <= MARGIN


@torch.inference_mode()
def test_maxima_come_with_the_logits_and_are_not_taken_for_others(load_native):
    """The sampler's first level is what a pass over the logits would have found."""
    model = load_native("llama")
    engine = make_engine(model)
    logits = []
    run = engine._runner.run
    engine._runner.run = lambda batch: logits.append(run(batch)) or logits[-1]
    engine.add(make_request(0, range(5, 30), max_tokens=2))
    engine.step()
    known = model.backend._maxima.of(logits[0])
    assert (known is None) is (model.backend._decoder is None)
    assert known is None or torch.equal(known.float(), BlockPasses().maxima(logits[0]))
    assert model.backend._maxima.of(torch.randn(1, 384).bfloat16()) is None


@pytest.fixture
def broken_kernels(monkeypatch):
    """They compute something else than the stock modules."""
    compute = native_backend.packed_logits
    monkeypatch.setattr(native_backend, "packed_logits", lambda *args: compute(*args) * 1.2)


def test_looks_at_start_leave_no_logits_behind(load_native):
    """They hold more rows than an answer in peace ever does: memory at rest is the model's."""
    engine = make_engine(load_native("gemma3"))
    for look in (engine.prove_invariance, engine.measure_steps):
        look()
        decoder = getattr(engine._runner._cache, "decoder", None)  # none where it runs in parts
        assert decoder is None or not len(decoder._logits)


def test_model_that_computes_something_else_is_refused(load_native, broken_kernels):
    """Nothing serves on kernels that was not seen to give the stock model's logits."""
    with pytest.raises(KernelsUnavailable, match=r"off by [12]\d\.\d%"):
        load_native("qwen2")
    with pytest.raises(KernelsUnavailable, match=r"off by [12]\d\.\d%"):
        load_native("qwen2", "int8", kernels="auto")  # PyTorch's would take twice the memory


@pytest.mark.parametrize("kind", KINDS)
def test_model_is_loaded_again_for_torch_where_the_kernels_fail(
    kind, load_native, broken_kernels, tiny_directory
):
    """Who left the choice to the server is served, reads why, and gets the answers of PyTorch's kernels."""
    told = []
    loaded = load_model(
        str(tiny_directory(kind)), dtype="bfloat16", progress=lambda line, share=None: told.append(line)
    )
    assert loaded.backend.name == "torch"
    assert loaded.computing.startswith("PyTorch's kernels, since the native ones fail: the model's logits")
    assert any("loading it again" in line for line in told)
    asked = load_model(str(tiny_directory(kind)), dtype="bfloat16", kernels="torch")
    assert loaded.fingerprint == asked.fingerprint
    request = make_request(0, range(5, 30), max_tokens=8)
    answers = [drive(make_engine(model), [request])[0].token_ids for model in (loaded, asked)]
    assert answers[0] == answers[1]


def test_memory_is_given_back_with_the_model(load_native):
    """A server that loads its model again doesn't keep the old one's weights."""
    model = load_native("gemma3")
    memory = weakref.ref(model.backend._memory)
    drive(make_engine(model), [make_request(0, range(20), max_tokens=3)])
    del model
    gc.collect()
    assert memory() is None
