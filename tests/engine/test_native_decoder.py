from copy import deepcopy

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.model_probe import packed_logits, probe_model
from seedance_server.engine.native_backend import NativeBackend
from seedance_server.engine.native_decoder import RotaryTables, find_decoder_obstacle

SHAPE = {
    "vocab_size": 200,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
UNTIED = {"tie_word_embeddings": False}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "llama with biases": (LlamaForCausalLM, LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "llama with yarn": (LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=YARN)),
    "llama untied": (LlamaForCausalLM, LlamaConfig(**SHAPE | UNTIED)),
    "odd widths": (
        LlamaForCausalLM,
        LlamaConfig(
            **SHAPE | {"hidden_size": 42, "head_dim": 10, "intermediate_size": 33, "vocab_size": 211}
        ),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=8)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE)),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**SHAPE, layer_types=LAYERS, sliding_window=8, query_pre_attn_scalar=16),
    ),
}


def _model(name):
    kind, config = MODELS[name][0], deepcopy(MODELS[name][1])  # a model changes its config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = kind(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases: not as they start, or a missing one wouldn't show
                parameter.data.uniform_(0.5, 1.5)
        return model.bfloat16().eval()


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_model_gives_the_logits_of_its_stock_modules(name):
    """Biases, norms, windows, rotaries, heads: as near to float32 as the stock modules, or 2 percent."""
    try:
        open_library()
    except KernelsMissing as missing:
        pytest.skip(str(missing))
    model = _model(name)
    exact = _model(name).float()
    expected, probed = probe_model(exact).logits, probe_model(model)
    assert find_decoder_obstacle(model) is None
    backend = NativeBackend()
    backend.adopt(model, probed)
    step = backend._probe_step(probed.geometry, probed.prompts)
    found = packed_logits(model, probed.prompts, step).float()

    def distance(one):
        return float((one - expected).norm() / expected.norm())

    assert distance(found) <= max(0.02, 1.2 * distance(probed.logits.float()))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("llama", {"hidden_act": "relu"}, "relu"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ("llama", {"model_type": "strange"}, "strange isn't among"),
    ],
)
def test_obstacle_is_told_in_words(name, change, reason):
    """What the kernels don't compute is left to the stock modules, and the log says why."""
    model = _model(name)
    for key, value in change.items():
        setattr(model.config, key, value)
    assert reason in find_decoder_obstacle(model)


def test_other_families_keep_their_forward_pass():
    """Phi-3 fuses its projections: its layers aren't guessed at."""
    assert "phi3 isn't among" in find_decoder_obstacle(Phi3ForCausalLM(Phi3Config(**SHAPE)).bfloat16())


def test_layer_that_is_no_plain_linear_is_an_obstacle():
    """An adapter or a quantised layer would be lost."""
    model = _model("llama")
    model.model.layers[1].mlp.up_proj = torch.nn.Sequential(model.model.layers[1].mlp.up_proj)
    assert "plain bfloat16" in find_decoder_obstacle(model)
    model = _model("llama")
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(200))
    assert "head has a bias" in find_decoder_obstacle(model)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_rotary_tables_are_the_model_s_own_and_grow(name):
    """For every position, each kind of layer gets what the stock model would compute."""
    model = _model(name)
    tables = RotaryTables.of(model)
    first = tables.up_to(10)
    assert tables.up_to(255) is first, "computed once"
    for cosines, sines in (grown := tables.up_to(300)):
        assert cosines.shape == sines.shape == (512, 16)
    like, at = torch.empty(1, 1, 1, dtype=torch.bfloat16), torch.tensor([[0, 7, 300]])
    kinds = RotaryTables.kinds(model.config)
    assert kinds == (("",) if name == "llama" else ("full_attention", "sliding_attention"))
    for kind, table in zip(kinds, grown, strict=True):
        expected = model.model.rotary_emb(like, at, *([kind] if kind else []))
        for own, stock in zip(table, expected, strict=True):
            assert torch.equal(own[at[0]], stock[0])
