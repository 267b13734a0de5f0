"""A whole decoder on the kernels: token ids in, logits out, one call per step.

`DecoderWeights` describes a model in the one shape that the kernels know (see decoder.h): whoever makes one
vouches that the model computes just that. Weights are packed as they come, so each original may be let go of
at once.
"""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Literal

import torch
from attrs import define, field, frozen
from torch import Tensor

from seedance_server.engine.kernels.attention import PagedRows
from seedance_server.engine.kernels.library import open_library
from seedance_server.engine.kernels.linear import PackedWeights, threads_handle
from seedance_server.engine.kernels.structures import Layer, Linear, Model, Norm, Pages, Reach, Rotary
from seedance_server.engine.kernels.weight_memory import WeightMemory

__all__ = ["Decoder", "DecoderLayer", "DecoderWeights", "Dense", "RmsNorm"]

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


@frozen(eq=False)
class RmsNorm:
    """An RMS norm.

    Attributes:
        weights: [dim] float32.
        epsilon: Added to the mean of squares.
        rounds_first: Whether the normalised row is rounded to bfloat16 before it is multiplied.
    """

    weights: Tensor
    epsilon: float
    rounds_first: bool

    def structure(self) -> Norm:
        """For the kernels."""
        return Norm(self.weights.data_ptr(), self.epsilon, self.rounds_first)


@frozen(eq=False)
class Dense:
    """A packed matrix with its bias.

    Attributes:
        weights: The matrix.
        bias: [columns, padded to whole panels] bfloat16, or None.
    """

    weights: PackedWeights
    bias: Tensor | None = None

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor | None]], memory: WeightMemory) -> "Dense":
        """One matrix of several whose columns follow each other; each with its bias or None."""
        bias = None
        if any(part is not None for _, part in parts):
            columns = [weights.new_zeros(len(weights)) if b is None else b.detach() for weights, b in parts]
            bias = torch.cat(columns)
        weights = parts[0][0] if len(parts) == 1 else torch.cat([weights.detach() for weights, _ in parts])
        return cls(PackedWeights.of(weights, memory), bias)

    @classmethod
    def interleaved(
        cls, parts: tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]], memory: WeightMemory
    ) -> "Dense":
        """Two matrices of equal shape, their panels in turn."""
        columns, width = parts[0][0].shape
        panels = -(-columns // 32)
        weights = parts[0][0].new_zeros((panels * 32, 2, width))
        biases = parts[0][0].new_zeros((panels * 32, 2))
        for index, (part, bias) in enumerate(parts):
            weights[:columns, index] = part.detach()
            if bias is not None:
                biases[:columns, index] = bias.detach()
        weights = weights.view(panels, 32, 2, width).transpose(1, 2).reshape(-1, width)
        flat = biases.view(panels, 32, 2).transpose(1, 2).reshape(-1)
        has_bias = any(bias is not None for _, bias in parts)
        return cls(PackedWeights.of(weights, memory), flat if has_bias else None)

    def structure(self) -> Linear:
        """For the kernels."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return Linear(self.weights.structure, bias)


@frozen(eq=False, kw_only=True)
class DecoderLayer:
    """One layer; norms that it doesn't have are None.

    Attributes:
        query_key_value: All query heads, then key heads, then value heads.
        output: From the heads back to the hidden width.
        gate_up: Panels of gate and up in turn.
        down: From the feed-forward's width back to the hidden width.
        before_attention: Norm of the attention's input.
        query: Norm of each query head.
        key: Norm of each key head.
        after_attention: Norm of the attention's output, before the residual.
        before_feed_forward: Norm of the feed-forward's input.
        after_feed_forward: Norm of its output, before the residual.
        window: Positions that a row sees, itself included; 0 for all.
        scaling: Factor on the dot products.
        rotary: Index of its table of positions.
    """

    query_key_value: Dense
    output: Dense
    gate_up: Dense
    down: Dense
    before_attention: RmsNorm
    query: RmsNorm | None
    key: RmsNorm | None
    after_attention: RmsNorm | None
    before_feed_forward: RmsNorm
    after_feed_forward: RmsNorm | None
    window: int
    scaling: float
    rotary: int

    def structure(self, group: int, plane: int) -> Layer:
        """For the kernels, with the layer's place in the cache."""
        dense = (self.query_key_value, self.output, self.gate_up, self.down)
        around_attention = (self.before_attention, self.query, self.key, self.after_attention)
        norms = (*around_attention, self.before_feed_forward, self.after_feed_forward)
        return Layer(
            *(each.structure() for each in dense),
            *(Norm() if each is None else each.structure() for each in norms),
            Reach(group, self.window, self.scaling),
            plane,
            self.rotary,
        )


@frozen(eq=False, kw_only=True)
class DecoderWeights:
    """A model.

    Attributes:
        layers: Its layers.
        final_norm: Before the head.
        head: [vocabulary, hidden], packed.
        embeddings: [vocabulary, hidden] bfloat16, or None where the head's weights are the embeddings, too.
        embedding_scale: Factor on the embeddings, rounded to bfloat16.
        query_heads: Per layer.
        feed_forward: Width between up and down.
        activation: Of the gate.
    """

    layers: tuple[DecoderLayer, ...]
    final_norm: RmsNorm
    head: PackedWeights
    embeddings: Tensor | None
    embedding_scale: float
    query_heads: int
    feed_forward: int
    activation: Literal["silu", "gelu_tanh"]


@define(eq=False, slots=False)
class Decoder:
    """A model over one cache's planes.

    Args:
        weights: The model.
        places: For each layer its (group, plane) in the cache.
        planes: The cache's, all of one shape.
    """

    weights: DecoderWeights
    places: Sequence[tuple[int, int]]
    planes: Sequence[Pages]
    _model: Model = field(init=False)
    _handle: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        layers = [
            layer.structure(*place) for layer, place in zip(self.weights.layers, self.places, strict=True)
        ]
        self._layers = (Layer * len(layers))(*layers)
        self._planes = (Pages * len(self.planes))(*self.planes)
        weights, embeddings = self.weights, self.weights.embeddings
        self._model = Model(
            ctypes.addressof(self._layers),
            *(len(layers), weights.head.width, weights.query_heads, weights.feed_forward),
            _ACTIVATIONS[weights.activation],
            weights.final_norm.structure(),
            weights.head.structure,
            None if embeddings is None else embeddings.data_ptr(),
            weights.embedding_scale,
        )
        library = open_library()
        self._handle = library.seedance_decoder_open()
        weakref.finalize(self, library.seedance_decoder_close, self._handle)
        # Kept between steps: fresh pages for rows as wide as the vocabulary cost more than writing them.
        self._logits = torch.empty(0, weights.head.columns, dtype=torch.bfloat16)
        self._maxima = torch.empty(0, weights.head.panels, dtype=torch.bfloat16)

    def trim(self) -> None:
        """Let go of the logits of earlier steps, and of the memory for so many."""
        self._logits, self._maxima = self._logits[:0].clone(), self._maxima[:0].clone()

    def run(
        self, rows: PagedRows, ids: Tensor, wanted: Tensor, rotaries: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """One forward pass.

        Args:
            rows: Where the rows stand.
            ids: [rows] int64 token ids, each below the vocabulary's size.
            wanted: Ascending int64 indices of the rows whose logits are wanted.
            rotaries: For each table that the layers name its cosines and sines: [positions, key dim],
                contiguous bfloat16, beyond the last row's position.

        Returns:
            Logits [wanted, vocabulary], and the greatest of each panel of 32 of them, both bfloat16 and
            overwritten by the next call.
        """
        if len(ids) != rows.step.rows or ids.dtype != torch.int64 or wanted.dtype != torch.int64:
            raise ValueError(f"{len(ids)} ids of {ids.dtype} for {rows.step.rows} rows")
        count = len(wanted)
        if len(self._logits) < count:
            self._logits = self._logits.new_empty((count, self._logits.shape[1]))
            self._maxima = self._maxima.new_empty((count, self._maxima.shape[1]))
        logits, maxima = self._logits[:count], self._maxima[:count]
        tables = (Rotary * len(rotaries))(
            *(Rotary(cosines.data_ptr(), sines.data_ptr()) for cosines, sines in rotaries)
        )
        open_library().seedance_decoder_run(
            *(self._handle, threads_handle()),
            *(ctypes.addressof(each) for each in (self._model, rows.step, self._planes, tables)),
            *(ids.data_ptr(), wanted.data_ptr(), count, logits.data_ptr(), maxima.data_ptr()),
        )
        return logits, maxima
