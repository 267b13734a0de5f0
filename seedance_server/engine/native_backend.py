"""The backend that computes with the engine's own CPU kernels.

It takes a bfloat16 model on a processor with AVX-512 and bfloat16 products. A decoder of a known family runs
on the kernels as a whole: one call per step. Of any other model the linear layers and the attention do, and
the stock modules around them stay. Every kernel adds in one fixed order, so a row's result doesn't depend on
the rows beside it, down to a single one. What was taken over is proved by its logits before it serves.
"""

from typing import Any, Unpack

import torch
from attrs import frozen
from torch import Tensor, nn

from seedance_server.engine.attention import STEP_ARGUMENT
from seedance_server.engine.backend import TorchBackend
from seedance_server.engine.config import QuantizeName
from seedance_server.engine.errors import KernelsUnavailable
from seedance_server.engine.kernels.attention import PagedRows
from seedance_server.engine.kernels.decoder import Decoder, DecoderWeights
from seedance_server.engine.kernels.library import (
    INT8_FEATURES,
    KernelsMissing,
    missing_features,
    open_library,
)
from seedance_server.engine.kernels.linear import PackedLinear
from seedance_server.engine.kernels.weight_memory import WeightMemory
from seedance_server.engine.kv_cache import CacheOptions, KvGeometry
from seedance_server.engine.memory import available_memory
from seedance_server.engine.model_probe import Probed, packed_logits
from seedance_server.engine.native_cache import NativeKvCache, NativeKvStep
from seedance_server.engine.native_decoder import (
    PACKING,
    RotaryTables,
    find_decoder_obstacle,
    pack_decoder,
)
from seedance_server.engine.native_sampler import HeadMaxima, NativeSampler
from seedance_server.engine.own_memory import own_weights
from seedance_server.engine.progress import Progress, silent
from seedance_server.engine.streams import CpuStreams, Streams

__all__ = ["NATIVE_REVISION", "NativeBackend", "find_obstacle"]

NATIVE_REVISION = 2
"""To be raised with every change to how a kernel rounds: it is part of the model's fingerprint."""

_TOLERANCES: dict[QuantizeName, float] = {"none": 0.1, "int8": 0.2}
"""Largest relative distance of logits from the stock modules'. Rounding alone gives up to 0.03, weights of 8
bits 0.05; a layer that computes something else gives 0.3 and more."""


def find_obstacle(model: Any, quantize: QuantizeName = "none") -> str | None:
    """Why ``model`` can't be computed with the kernels here, in a few words; None if it can."""
    if model.device.type != "cpu":
        return f"the model is on {model.device.type}"
    if model.dtype != torch.bfloat16:
        return f"they compute bfloat16, the model is {str(model.dtype).removeprefix('torch.')}"
    try:
        open_library()
    except KernelsMissing as missing:
        return str(missing)
    if quantize == "int8" and (lacking := missing_features(required=INT8_FEATURES)):
        return f"the processor lacks {', '.join(lacking)}"
    return None


class NativeBackend(TorchBackend):
    """The kernels, and torch for what they don't compute. Only where `find_obstacle` found none.

    Args:
        quantize: "int8" to keep the weights of linear layers in 8 bits, and those of embeddings where the
            head's are the same.
    """

    least_rows = 1
    graph_obstacle: str | None = "the native kernels compute a step in a call of their own (--kernels torch)"

    def __init__(self, quantize: QuantizeName = "none") -> None:
        super().__init__()
        self.name = f"native-{NATIVE_REVISION}" + ("" if quantize == "none" else f"-{quantize}")
        self._maxima = HeadMaxima()
        self._memory = WeightMemory(open_library(), bits=8 if quantize == "int8" else 16)
        self._tolerance = _TOLERANCES[quantize]
        self._decoder: DecoderWeights | None = None

    def prepare(self, model: Any) -> None:
        """Has memory for the packed weights touched, where there is room for them beside the originals.

        Else they are packed into fresh memory, matrix by matrix, and an original goes with each.
        """
        originals = sum(each.weight.nbytes for each in model.modules() if _is_packable(each))
        packed = originals * self._memory.bits // 16
        # Originals that are mapped count as available, and would have to be read again.
        if available_memory(model.device) >= originals + packed:
            self._memory.reserve(packed)

    @torch.inference_mode()
    def adopt(self, model: Any, probed: Probed, progress: Progress = silent) -> None:
        """Take over what the kernels compute, and prove it. An original is let go of once it is packed.

        Raises:
            KernelsUnavailable: The logits aren't the stock modules'. The model is of no use any more.
        """
        if find_decoder_obstacle(model) is None:
            rotaries = RotaryTables.of(model)
            self._decoder = pack_decoder(model, probed.geometry.windows, self._memory, progress)
            model.forward = _NativeForward(self._maxima, rotaries)
        else:
            progress(PACKING)
            _swap_linears(model, self._memory)
            own_weights(model)
        progress("comparing what the native kernels compute with the model's own")
        expected = probed.logits.float()
        step = self._probe_step(probed.geometry, probed.prompts)
        found = packed_logits(model, probed.prompts, step).float()
        distance = float((found - expected).norm() / expected.norm())
        if not distance <= self._tolerance:  # NaN included
            raise KernelsUnavailable(f"the model's logits are off by {distance:.1%}")

    def open_cache(self, geometry: KvGeometry, **options: Unpack[CacheOptions]) -> NativeKvCache:
        """A cache that the kernels read."""
        cache = NativeKvCache(geometry, **options)
        if self._decoder is not None:
            cache.decoder = Decoder(self._decoder, cache.places, cache.pages)
        return cache

    def open_sampler(self, vocab_size: int, streams: Streams) -> NativeSampler:  # noqa: ARG002 - there are none here
        """A sampler on the kernels, which knows the maxima of the newest logits."""
        return NativeSampler(vocab_size, self._maxima)

    def _probe_step(self, geometry: KvGeometry, prompts: list[Tensor]) -> NativeKvStep:
        """A small cache that holds the prompts side by side, in blocks that don't."""
        block_size, lengths = 16, list(map(len, prompts))
        blocks = [-(-length // block_size) for length in lengths]
        groups = len(geometry.groups)
        cache = self.open_cache(
            geometry,
            total_blocks=groups * sum(blocks),
            block_size=block_size,
            longest_chunk=max(lengths),
            device=torch.device("cpu"),
            streams=CpuStreams(lambda: 0.0),
        )
        free = list(range(groups * sum(blocks)))
        tables = [[[free.pop() for _ in range(count)] for count in blocks] for _ in range(groups)]
        spans = [(0, length) for length in lengths]
        return NativeKvStep(cache, PagedRows.of(spans, tables, rings=[None] * groups, block_size=block_size))


@frozen
class _Output:
    """What a forward pass returns, as far as anybody asks."""

    logits: Tensor


@frozen(eq=False)
class _NativeForward:
    """Stands in for the forward pass of a model that runs on the kernels as a whole."""

    maxima: HeadMaxima
    rotaries: RotaryTables

    def __call__(
        self,
        *,
        input_ids: Tensor,
        position_ids: Tensor,
        use_cache: bool,  # noqa: ARG002 - ours is the cache
        logits_to_keep: Tensor,
        **arguments: Any,
    ) -> _Output:
        step: NativeKvStep = arguments[STEP_ARGUMENT]
        tables = self.rotaries.up_to(int(position_ids.max()))
        logits, maxima = step.cache.decoder.run(step.rows, input_ids[0], logits_to_keep, tables)
        self.maxima.keep(logits, maxima)
        return _Output(logits[None])


def _is_packable(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.weight.dtype == torch.bfloat16


def _swap_linears(model: Any, memory: WeightMemory) -> None:
    """Put packed layers in the place of plain linear ones, one after the other."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_packable(child):
                setattr(parent, name, PackedLinear.of(child, memory))
