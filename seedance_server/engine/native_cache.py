"""The KV cache as the native kernels use it: the same planes and blocks, no plan but where rows stand.

The kernels look blocks up by themselves, so a step gathers nothing and needs no mask.
"""

from typing import Unpack

from attrs import frozen
from torch import Tensor

from seedance_server.engine.batch import Batch
from seedance_server.engine.kernels.attention import PagedRows, attend_paged, pages_of
from seedance_server.engine.kernels.decoder import Decoder
from seedance_server.engine.kernels.structures import Pages, Reach
from seedance_server.engine.kv_cache import CacheOptions, KvCache, KvGeometry

__all__ = ["NativeKvCache", "NativeKvStep"]


class NativeKvCache(KvCache):
    """A cache whose steps attend with the kernels. Arguments as of `KvCache`.

    Attributes:
        pages: For each plane what the kernels read of it.
        decoder: The model over these planes, where it runs on the kernels as a whole; the backend sets it.
    """

    decoder: Decoder

    def __init__(self, geometry: KvGeometry, **options: Unpack[CacheOptions]) -> None:
        super().__init__(geometry, **options)
        self.pages: tuple[Pages, ...] = tuple(map(pages_of, self.keys, self.values))

    def trim(self) -> None:
        """See `KvCache.trim`: here that is the decoder's logits, rows as wide as the vocabulary."""
        if hasattr(self, "decoder"):
            self.decoder.trim()

    def plan(self, batch: Batch) -> "NativeKvStep":  # type: ignore[override]  # both are AttentionSteps
        """Say where the rows of ``batch`` stand; their tables must hold blocks for them."""
        chunks = batch.chunks
        tables = [
            [chunk.sequence.table.groups[group] for chunk in chunks] for group in range(len(self.rings))
        ]
        spans = ((chunk.start, chunk.count) for chunk in chunks)
        return NativeKvStep(self, PagedRows.of(spans, tables, rings=self.rings, block_size=self.block_size))


@frozen(eq=False)
class NativeKvStep:
    """One step's attention over the cache: an `AttentionStep`.

    Attributes:
        cache: Where keys and values are.
        rows: Where the rows stand.
    """

    cache: NativeKvCache
    rows: PagedRows

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        """See `AttentionStep.attend`."""
        group, plane = self.cache.places[layer]
        reach = Reach(group, window or 0, query.shape[-1] ** -0.5 if scaling is None else scaling)
        parts = (part[0].transpose(0, 1) for part in (query, key, value))
        return attend_paged(self.rows, reach, self.cache.pages[plane], *parts)[None]
