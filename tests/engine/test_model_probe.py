import copy
import re
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from seedance_server.engine.attention import UnsupportedAttention
from seedance_server.engine.backend import TorchBackend
from seedance_server.engine.constraint import Constraints
from seedance_server.engine.model_loader import LoadedModel
from seedance_server.engine.model_probe import probe_model
from seedance_server.engine.native_decoder import _FAMILIES
from tests.engine.driving import drive, generate_alone, make_engine, make_request
from tests.tiny_models import KINDS, SLIDING_WINDOW, build_tiny_tokenizer

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probe_accepts_the_models_that_we_promise_to_run(kind, dtype, tiny_directory):
    """Rounding is no reason to refuse a model, in either dtype."""
    model = AutoModelForCausalLM.from_pretrained(tiny_directory(kind), dtype=dtype).eval()
    geometry = probe_model(model).geometry
    windows = (SLIDING_WINDOW, None) * 2 if kind == "gemma3" else (None, None)
    assert (geometry.windows, geometry.heads, geometry.dtype) == (windows, 2, dtype)
    assert (geometry.key_dim, geometry.value_dim) == (16, 16)


@pytest.mark.parametrize(
    ("model_class", "config", "windows"),
    [
        (Qwen3ForCausalLM, Qwen3Config(**SHAPE), (None, None)),
        (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=8), (8, 8)),
    ],
)
def test_probe_sees_what_a_model_asks_for_without_knowing_its_name(model_class, config, windows):
    """Geometry is observed, so an architecture that we never heard of works if it is ordinary."""
    assert probe_model(model_class(config).eval()).geometry.windows == windows


@pytest.mark.parametrize(
    ("model_class", "config", "reason"),
    [
        (Gemma2ForCausalLM, Gemma2Config(**SHAPE, sliding_window=8), "softcap"),
        (GptOssForCausalLM, GptOssConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1), "s_aux"),
        (MambaForCausalLM, MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1), "attention"),
    ],
)
def test_probe_refuses_what_our_attention_does_not_compute(model_class, config, reason):
    """A model that would answer wrongly doesn't start."""
    with pytest.raises(UnsupportedAttention, match=reason):
        probe_model(model_class(config).eval())


def test_probe_refuses_a_model_whose_rows_mix():
    """Packed sequences must not feel each other: a state carried along the rows shows in the logits."""

    class Mixing(Qwen3ForCausalLM):
        def forward(self, input_ids=None, **kwargs):
            outputs = super().forward(input_ids=input_ids, **kwargs)
            outputs.logits = outputs.logits.cumsum(1)
            return outputs

    with pytest.raises(UnsupportedAttention, match="logits are off"):
        probe_model(Mixing(Qwen3Config(**SHAPE)).eval())


def test_probe_refuses_windows_that_a_model_keeps_to_itself():
    """A window that only the model's own masks know would be ignored by our attention."""
    config = MistralConfig(**SHAPE, sliding_window=8)
    model = MistralForCausalLM(config).eval()
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UnsupportedAttention, match="windows"):
        probe_model(model)


SERVED = (
    *("apertus", "arcee", "bitnet", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma3_text"),
    *("glm", "glm4"),
    *("gpt2", "gpt_neox", "granite", "granitemoe", "helium", "hunyuan_v1_dense", "llama", "ministral"),
    *("mistral", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "starcoder2"),
)
REFUSED = {
    "bloom": "AttentionInterface",
    "gemma2": "softcap",
    "jamba": "layers of another kind",
    "mamba": "layers of another kind",
    "minimax": "layers of another kind",
    "mpt": "AttentionInterface",
    "nemotron": "keyword arguments",
    "rwkv": "AttentionInterface",
    "stablelm": "keyword arguments",
}


def _random_model(kind):
    """Two layers of any architecture of Transformers' registry, by its name there."""
    shape = SHAPE | {"vocab_size": 384, "max_position_embeddings": 256}
    no_specials = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    config = AutoConfig.for_model(kind, **shape, **no_specials)
    if kind in {"gemma3_text", "mistral"}:
        config.sliding_window = SLIDING_WINDOW
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return AutoModelForCausalLM.from_config(config).eval().float()


def test_page_of_models_names_what_is_served_and_what_is_refused():
    """What users are promised is what the tests below run, no more and no less."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    served, refused = page.split("## Served")[1].split("## Refused")
    names = re.findall(r"`(\w+)`", served.split("The native kernels")[0].split("|---|---|")[1])
    assert sorted(names) == sorted(SERVED)
    assert (
        set(re.findall(r"`(\w+)`", served.split("The native kernels")[1].split("as a whole")[0])) == _FAMILIES
    )
    assert set(REFUSED) <= set(re.findall(r"`(\w+)`", refused.split("## GGUF")[0]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVED)
def test_architecture_answers_as_generate_does(kind):
    """Any of them, packed beside each other and cut into chunks, gives Transformers' own greedy tokens."""
    model = _random_model(kind)
    stock = copy.deepcopy(model)
    loaded = LoadedModel(
        model=model,
        tokenizer=build_tiny_tokenizer(),
        name=kind,
        eos_token_ids=frozenset(),
        context_length=200,
        vocab_size=384,
        geometry=probe_model(model).geometry,
        constraints=Constraints(None, 384, ()),
        backend=TorchBackend(),
        fingerprint=b"",
    )
    prompts = [range(3, 43), range(50, 57), (9,)]
    requests = [make_request(n, prompt, max_tokens=24) for n, prompt in enumerate(prompts)]
    answers = drive(make_engine(loaded, prefill_budget_tokens=16), requests)
    assert [answers[n].token_ids for n in range(3)] == [
        generate_alone(stock, prompt, 24) for prompt in prompts
    ]


@pytest.mark.parametrize(("kind", "reason"), REFUSED.items(), ids=REFUSED)
def test_architecture_is_refused_by_name_where_it_does_not_fit(kind, reason):
    """State-space and linear attention, biases on attention: a reason at start, never a wrong answer."""
    with pytest.raises(UnsupportedAttention, match=reason):
        probe_model(_random_model(kind))
