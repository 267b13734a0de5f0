"""Recognises the models that the kernels run as a whole, and takes them over.

A model is taken apart only if its family is known here, its layers hold the modules that the family's do, and
each of them is of a kind that the kernels compute. Anything else is an obstacle, told in words, and such a
model keeps its own forward pass. What is taken over is proved afterwards by its logits (see
`native_backend.py`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

from seedance_server.engine.kernels.decoder import DecoderLayer, DecoderWeights, Dense, RmsNorm
from seedance_server.engine.kernels.linear import PackedWeights
from seedance_server.engine.kernels.weight_memory import WeightMemory
from seedance_server.engine.own_memory import own_weights
from seedance_server.engine.progress import Progress, silent

__all__ = ["PACKING", "RotaryTables", "find_decoder_obstacle", "pack_decoder"]

PACKING = "packing its weights"
"""The stage in which weights change from the stock modules into panels, in the words of whoever waits."""

_FAMILIES = {"gemma3_text", "llama", "mistral", "qwen2", "qwen3"}
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_FIXED_ROTARIES = {"default", "linear", "llama3", "yarn"}  # angles that depend on the position alone
_ATTENTION_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
_FEED_FORWARD_LINEARS = ("gate_proj", "up_proj", "down_proj")


def find_decoder_obstacle(model: Any) -> str | None:
    """Why the kernels can't run ``model`` as a whole, in a few words; None if they can."""
    return next(_obstacles(model, model.config.get_text_config(decoder=True)), None)


def _obstacles(model: Any, config: Any) -> Iterator[str]:
    if config.model_type not in _FAMILIES or not type(model).__module__.startswith("transformers.models."):
        yield f"{config.model_type} isn't among the decoders that they run as a whole"
        return
    if _activation(config) not in _ACTIVATIONS:
        yield f"it uses the activation {_activation(config)}"
    for cap in ("final_logit_softcapping", "attn_logit_softcapping"):
        if getattr(config, cap, None):
            yield f"it has {cap}"
    for name in _rope_types(config) - _FIXED_ROTARIES:
        yield f"its rotary positions are {name}"
    linears = [model.lm_head]
    for layer in model.model.layers:
        linears += [getattr(layer.self_attn, name) for name in _ATTENTION_LINEARS]
        linears += [getattr(layer.mlp, name) for name in _FEED_FORWARD_LINEARS]
    if any(type(each) is not nn.Linear or each.weight.dtype != torch.bfloat16 for each in linears):
        yield "not all its linear layers are plain bfloat16 ones"
    if model.lm_head.bias is not None:
        yield "its head has a bias"


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _rope_types(config: Any) -> set[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    entries = [rope] if "rope_type" in rope else [entry for entry in rope.values() if isinstance(entry, dict)]
    return {entry.get("rope_type", "default") for entry in entries}


def pack_decoder(
    model: Any, windows: tuple[int | None, ...], memory: WeightMemory, progress: Progress = silent
) -> DecoderWeights:
    """Take the weights out of ``model``, which has no layers afterwards.

    Args:
        model: One without an obstacle.
        windows: For each layer how many positions a row sees.
        memory: Where the packed weights go.
        progress: Told of each layer.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = RotaryTables.kinds(config)
    layers = []
    stack = model.model.layers
    for index, window in enumerate(windows):
        progress(PACKING, index / (len(windows) + 1))  # the head is as one layer more
        rotary = kinds.index(config.layer_types[index]) if len(kinds) > 1 else 0
        layers.append(_pack_layer(stack[index], window, rotary, memory))
        stack[index] = nn.Identity()  # its weights have been copied
    embedding = model.model.embed_tokens
    tied = embedding.weight.data_ptr() == model.lm_head.weight.data_ptr()
    head = PackedWeights.of(model.lm_head.weight, memory)
    model.lm_head = nn.Identity()
    if tied:
        model.model.embed_tokens = nn.Identity()
    own_weights(model)
    scale = getattr(embedding, "scalar_embed_scale", 1.0)
    return DecoderWeights(
        layers=tuple(layers),
        final_norm=_norm(model.model.norm),
        head=head,
        embeddings=None if tied else embedding.weight.detach().contiguous(),
        embedding_scale=float(torch.tensor(scale).bfloat16()),
        query_heads=config.num_attention_heads,
        feed_forward=config.intermediate_size,
        activation="silu" if _ACTIVATIONS[_activation(config)] == "silu" else "gelu_tanh",
    )


def _pack_layer(layer: Any, window: int | None, rotary: int, memory: WeightMemory) -> DecoderLayer:
    attention, feed_forward = layer.self_attn, layer.mlp
    # Gemma 3 has norms behind attention and feed-forward; the others call the one before the feed-forward
    # "post_attention_layernorm".
    sandwich = hasattr(layer, "pre_feedforward_layernorm")

    def parts(owner: Any, *names: str) -> list[tuple[Tensor, Tensor | None]]:
        return [(getattr(owner, name).weight, getattr(owner, name).bias) for name in names]

    gate, up = parts(feed_forward, "gate_proj", "up_proj")
    return DecoderLayer(
        query_key_value=Dense.of(parts(attention, "q_proj", "k_proj", "v_proj"), memory),
        output=Dense.of(parts(attention, "o_proj"), memory),
        gate_up=Dense.interleaved((gate, up), memory),
        down=Dense.of(parts(feed_forward, "down_proj"), memory),
        before_attention=_norm(layer.input_layernorm),
        query=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        after_attention=_norm(layer.post_attention_layernorm) if sandwich else None,
        before_feed_forward=_norm(
            layer.pre_feedforward_layernorm if sandwich else layer.post_attention_layernorm
        ),
        after_feed_forward=_norm(layer.post_feedforward_layernorm) if sandwich else None,
        window=window or 0,
        scaling=float(attention.scaling),
        rotary=rotary,
    )


def _norm(norm: Any) -> RmsNorm:
    weights = norm.weight.detach().float()
    if hasattr(norm, "variance_epsilon"):  # Llama's kind
        return RmsNorm(weights.clone(), float(norm.variance_epsilon), rounds_first=True)
    return RmsNorm(1.0 + weights, float(norm.eps), rounds_first=False)  # Gemma's


@define(eq=False)
class RotaryTables:
    """Cosines and sines of positions, from the model's own rotary embedding; they grow as they are needed.

    Args:
        model: Its rotary embedding is kept.
    """

    _rotary: Any
    _kinds: tuple[str, ...]
    _tables: list[tuple[Tensor, Tensor]] = field(factory=list)

    @classmethod
    def of(cls, model: Any) -> "RotaryTables":
        """Those of a model."""
        return cls(model.model.rotary_emb, cls.kinds(model.config.get_text_config(decoder=True)))

    @staticmethod
    def kinds(config: Any) -> tuple[str, ...]:
        """Kinds of layers that have angles of their own; one nameless kind if all share theirs."""
        rope = getattr(config, "rope_parameters", None) or {}
        return ("",) if "rope_type" in rope or not rope else tuple(sorted(rope))

    def up_to(self, position: int) -> list[tuple[Tensor, Tensor]]:
        """For each kind its cosines and sines [more than ``position``, key dim] in bfloat16."""
        if not self._tables or position >= len(self._tables[0][0]):
            size = 256
            while size <= position:
                size *= 2
            positions = torch.arange(size)[None]
            like = torch.empty(1, 1, 1, dtype=torch.bfloat16)
            self._tables = []
            for kind in self._kinds:
                pair = self._rotary(like, positions, kind) if kind else self._rotary(like, positions)
                cosines, sines = (part[0].contiguous() for part in pair)
                self._tables.append((cosines, sines))
        return self._tables
