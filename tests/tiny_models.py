"""Tiny random models with a real tokenizer, made on the fly.

Each architecture keeps what makes it special (Qwen2: biases; Llama: grouped heads; Gemma 3: alternating
sliding windows, q/k norms, scaled embeddings) at a size that builds in well under a second. Weights are fp32
and follow from the kind alone, so two builds are the same model. Tests never need a hub or a download.
"""

from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()

__all__ = ["KINDS", "SLIDING_WINDOW", "TinyKind", "build_tiny_model", "build_tiny_tokenizer"]

TinyKind = Literal["qwen2", "llama", "gemma3"]
KINDS: tuple[TinyKind, ...] = ("qwen2", "llama", "gemma3")

SLIDING_WINDOW = 16
_VOCABULARY = 384  # 256 bytes, 3 specials and enough merges that words are split unevenly
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = (
    "The quick brown fox jumps over the lazy dog, then it rests under the old apple tree near the river.",
    "A model reads the prompt, computes keys and values for every token, and keeps them for the next step.",
    "Each sequence joins the batch when there is room and leaves it the moment that its answer has ended.",
    "for token in stream: print(token, end='')  # numbers 0 1 2 3 4 5 6 7 8 9 10 20 30 100 1000",
    "Größe, naïve café, ďábel, שלום עולם, 你好世界, こんにちは, emoji 👩‍👩‍👧 and 🚀 are text as well.",
    "user assistant system: question, answer, and the other words that a conversation is usually made of.",
)
_WIDE_INIT = 0.2  # the usual 0.02 gives near-equal logits at this size: greedy choices would hang on rounding


def build_tiny_tokenizer(*, with_chat_template: bool = True) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of 384 entries on a few fixed sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    if with_chat_template:
        fast.chat_template = _CHATML
    return fast


def build_tiny_model(kind: TinyKind, directory: Path, *, with_chat_template: bool = True) -> Path:
    """Save a random two-layer (Gemma 3: four-layer) fp32 model with its tokenizer into `directory`.

    Args:
        kind: The architecture.
        directory: Where to write; made if missing.
        with_chat_template: Whether the tokenizer knows ChatML; without it the model is a base model.

    Returns:
        `directory`, ready for `from_pretrained`.
    """
    tokenizer = build_tiny_tokenizer(with_chat_template=with_chat_template)
    eos_ids = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(KINDS.index(kind))
        model = _random_model(kind, eos_ids).eval()
    model.generation_config = GenerationConfig(eos_token_id=eos_ids, pad_token_id=eos_ids[1])
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _random_model(kind: TinyKind, eos_ids: list[int]) -> PreTrainedModel:
    shape = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": _WIDE_INIT,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": eos_ids,
        "pad_token_id": eos_ids[1],
    }
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**shape))
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    layers = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    special = {"num_hidden_layers": 4, "head_dim": 16, "query_pre_attn_scalar": 16, "layer_types": layers}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**shape | special, sliding_window=SLIDING_WINDOW))
    # Gemma scales its tied embeddings by sqrt(hidden), so a random one only ever repeats its last token:
    # shrink the embedding and give the head its scale back through the final norm (whose w means 1 + w).
    model.model.embed_tokens.weight.data.div_(8)
    model.model.norm.weight.data.fill_(7.0)
    return model
