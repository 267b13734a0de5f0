"""Models to measure: the shapes of known ones, with random numbers in them, made where they run.

Speed doesn't depend on what the weights are, and a machine without a network has no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
)

from seedance_server.engine.backend import TorchBackend
from seedance_server.engine.constraint import Constraints
from seedance_server.engine.model_loader import LoadedModel
from seedance_server.engine.model_probe import probe_model

__all__ = ["SHAPES", "TINY", "make_model"]


def _gemma_270m() -> Any:
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)]
    return Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
        layer_types=kinds,
        max_position_embeddings=8192,
    )


def _llama_1b() -> Any:
    return LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


def _mistral_7b() -> Any:
    return MistralConfig(
        vocab_size=32_000,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
        sliding_window=None,
    )


def _tiny() -> Any:
    return LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )


SHAPES: dict[str, Callable[[], Any]] = {
    "gemma-3-270m": _gemma_270m,
    "llama-1b": _llama_1b,
    "mistral-7b": _mistral_7b,
}
"""In the order in which they are measured: the small one is where a host is the slow part."""
TINY: dict[str, Callable[[], Any]] = {"tiny": _tiny}


def make_model(name: str, config: Any, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Make one, checked as a loaded one is.

    Args:
        name: What to call it.
        config: Its shape.
        device: Where.
        dtype: Of its weights.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    geometry = probe_model(model).geometry
    # Answers are thrown away; what isn't in a vocabulary is decoded to nothing.
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain)
    vocabulary = int(model.get_output_embeddings().weight.shape[0])
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        eos_token_ids=frozenset(),
        context_length=int(config.max_position_embeddings),
        vocab_size=vocabulary,
        geometry=geometry,
        constraints=Constraints(tokenizer, vocabulary, frozenset(), offered=False),
        backend=TorchBackend(),
        fingerprint=b"",
    )
