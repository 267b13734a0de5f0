"""Where keys and values live, and how a step's rows reach them: the one file that knows the layout.

Layers of the same kind (full attention, or one window) are cut into *groups* of equal size. A block holds
`block_size` tokens of one group; the i-th layer of every group shares *plane* i, a pair of tensors
`[blocks * block_size, heads, dim]`. So one pool serves all kinds, and a window's group takes only a ring of
blocks (see `block_pool.py`). Position p of a sequence lies at `table[(p // block_size) % ring] * block_size +
p % block_size`.

A step is planned once (which slots to write, which to read, under which mask) and then used by every layer.
Rows are written before any are read. A read never touches a slot that its sequence didn't write: padding
repeats the last position under the mask, so stale memory can't leak, not even as NaN.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import NotRequired, Self, TypedDict, TypeVar

import torch
from attrs import frozen
from torch.nn.functional import pad, scaled_dot_product_attention

from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.errors import InsufficientMemory
from seedance_server.engine.huge_pages import prefer_huge_pages
from seedance_server.engine.padding import USUAL, Padding, rounded_up
from seedance_server.engine.streams import Streams

__all__ = ["CacheOptions", "KvCache", "KvGeometry", "KvStep"]

_Position = TypeVar("_Position", int, torch.Tensor)
_SMALLEST_SIZE = 256
"""Rows of answers that read up to so many positions are read together, longer ones with those up to twice as
long. Below, attention is too small a part of a step to cut it further. Picked."""


@frozen
class KvGeometry:
    """What a model keeps per token.

    Attributes:
        windows: For each layer, how many positions a row sees (itself included); None for all.
        heads: Key and value heads.
        key_dim: Width of a key head.
        value_dim: Width of a value head.
        dtype: Of keys and values.
    """

    windows: tuple[int | None, ...]
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def planes(self) -> int:
        """Layers per group: those of the rarest kind, so that no kind wastes more than a group."""
        return min(self.windows.count(window) for window in set(self.windows))

    @property
    def groups(self) -> tuple[int | None, ...]:
        """The window of each group; groups of one kind are adjacent."""
        kinds = sorted(set(self.windows), key=lambda window: window or 0)
        return tuple(
            window for window in kinds for _ in range(ceil(self.windows.count(window) / self.planes))
        )

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """For each layer its (group, plane)."""
        places = []
        for layer, window in enumerate(self.windows):
            group, plane = divmod(self.windows[:layer].count(window), self.planes)
            places.append((self.groups.index(window) + group, plane))
        return tuple(places)

    def rings(self, block_size: int, longest_chunk: int) -> tuple[int | None, ...]:
        """Blocks in the ring of each group: as many as a window and the chunk behind it can touch."""
        return tuple(
            None if window is None else (window + longest_chunk - 3) // block_size + 2
            for window in self.groups
        )

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block over all planes."""
        return self.planes * block_size * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@frozen(eq=False)
class _Read:
    """Reads of `length` positions each: their slots for each group of one kind, their rows and the mask."""

    rows: slice | torch.Tensor  # of the step: all those that read
    length: int
    slots: torch.Tensor  # [groups of this kind, reads * length]
    mask: torch.Tensor


@frozen(eq=False)
class _KindPlan:
    """One kind of layer in one step."""

    write: torch.Tensor  # [groups of this kind, rows]
    singles: tuple[_Read, ...]  # one read of `length` positions per row; mask [rows, length]
    spans: tuple[_Read, ...]  # one read for all rows; mask [rows, length]


class CacheOptions(TypedDict):
    """What a cache is made with, beside its geometry; see `KvCache`."""

    total_blocks: int
    block_size: int
    longest_chunk: int
    device: torch.device
    streams: Streams
    padding: NotRequired[Padding]


class KvCache:
    """The preallocated tensors of one engine.

    Args:
        geometry: What the model keeps.
        total_blocks: Size of the pool.
        block_size: Tokens per block.
        longest_chunk: Most tokens of one sequence in one step.
        device: Where the tensors live.
        streams: Carries index tensors to the device.
        padding: What the shapes of reads are rounded up to.

    Attributes:
        padding: The same.
        rings: For each group of layers the length of its ring in blocks, or None.
        places: For each layer its (group, plane).
        kinds: For each kind of layer its groups, which are adjacent, its window and its ring.
        keys: For each plane [slots, heads, key dim].
        values: For each plane [slots, heads, value dim].
    """

    def __init__(
        self,
        geometry: KvGeometry,
        *,
        total_blocks: int,
        block_size: int,
        longest_chunk: int,
        device: torch.device,
        streams: Streams,
        padding: Padding = USUAL,
    ) -> None:
        self.padding = padding
        self.block_size = block_size
        self.rings = geometry.rings(block_size, longest_chunk)
        self.places = geometry.places
        self.kinds = tuple(
            (slice(first, first + geometry.groups.count(window)), window, self.rings[first])
            for first, window in enumerate(geometry.groups)
            if window not in geometry.groups[:first]
        )
        self._dtype = geometry.dtype
        self._device = device
        self._streams = streams
        slots = total_blocks * block_size

        def planes(dim: int) -> list[torch.Tensor]:
            # Not zeroed: pages that no sequence has used yet cost no memory.
            shape = (slots, geometry.heads, dim)
            made = [torch.empty(shape, dtype=geometry.dtype, device=device) for _ in range(geometry.planes)]
            for plane in made:
                prefer_huge_pages(plane)
            return made

        try:
            self.keys, self.values = planes(geometry.key_dim), planes(geometry.value_dim)
        except (RuntimeError, MemoryError) as error:  # torch's CPU allocator raises a bare RuntimeError
            raise InsufficientMemory(total_blocks * geometry.block_bytes(block_size), None) from error
        # What one layer gathers; the next one overwrites it. Fresh pages for each cost as much as attention.
        self._gathered = [torch.empty(0, *planes[0].shape[1:]) for planes in (self.keys, self.values)]

    def trim(self) -> None:
        """Let go of what steps keep for the next one; not of what is gathered, which recorded steps read."""

    def plan(self, batch: Batch) -> "KvStep":
        """Work out where the rows of ``batch`` write and read; their tables must hold blocks for them."""
        kinds = [self._plan_kind(batch, *kind) for kind in self.kinds]
        return KvStep.of(self, batch.tokens, kinds)

    def plan_rows(self, tables: Iterable[torch.Tensor], positions: torch.Tensor, length: int) -> "KvStep":
        """Work out the same on the device, for single rows, from what it holds: the host reads nothing.

        Args:
            tables: For each of `kinds`, int64 [groups of this kind, rows, blocks], with blocks for the
                row's position and all before it that it sees.
            positions: Int64 [rows].
            length: How many positions to read of each row; more than any of ``positions``.
        """
        kinds = []
        for table, (_, window, ring) in zip(tables, self.kinds, strict=True):
            # From where reading begins up to a row are as many as a window has, and what lies before it.
            reach = length if window is None else min(length, self._padded(window + self.padding.begins - 1))
            rows = slice(0, len(positions))
            write, read = self._plan_singles(table, positions[:, None], window, ring, reach, rows)
            kinds.append(_KindPlan(write, (read,), ()))
        return KvStep.of(self, len(positions), kinds)

    def gather(self, plane: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy rows of one plane side by side.

        Args:
            plane: Which one.
            slots: [n] int64, on the cache's device.

        Returns:
            Keys [n, heads, key dim] and values [n, heads, value dim], until the next call.
        """
        sources = self.keys[plane], self.values[plane]
        if sources[0].is_cuda:  # whose allocator is fast, and recorded steps mustn't meet scratch that moved
            return sources[0].index_select(0, slots), sources[1].index_select(0, slots)
        parts = []
        for part, source in enumerate(sources):
            if len(self._gathered[part]) < len(slots):
                self._gathered[part] = source.new_empty((2 * len(slots), *source.shape[1:]))
            room = self._gathered[part][: len(slots)]
            parts.append(torch.index_select(source, 0, slots, out=room))
        return parts[0], parts[1]

    def _plan_kind(self, batch: Batch, groups: slice, window: int | None, ring: int | None) -> _KindPlan:
        writes, singles, order = [], [], []
        for rows, length in self._sizes(batch.singles, window):
            chunks = [batch.singles[row] for row in rows]
            position = self._streams.upload(torch.tensor([chunk.start for chunk in chunks]))
            alone = len(rows) == len(batch.singles)
            where = slice(0, len(rows)) if alone else self._streams.upload(torch.tensor(rows))
            tables = self._tables(chunks, groups)
            write, read = self._plan_singles(tables, position[:, None], window, ring, length, where)
            writes.append(write)
            singles.append(read)
            order += rows
        if len(singles) > 1:
            writes = [torch.cat(writes, dim=1)[:, torch.tensor(order, device=self._device).argsort()]]
        spans = []
        row = len(batch.singles)
        for chunk in batch.spans:
            tables = self._tables([chunk], groups)
            stop = chunk.start + chunk.count
            first = _first_seen(chunk.start, window)
            begin = self._begin(first)
            reach = torch.arange(begin, begin + self._padded(stop - begin), device=self._device)
            queries = rounded_up(chunk.count, self.padding.queries)
            position = torch.arange(chunk.start, chunk.start + queries, device=self._device)[:, None]
            seen = reach <= position
            if window is not None:
                seen &= reach > position - window
            writes.append(self._slots(tables, position[: chunk.count].T, ring))
            slots = self._slots(tables, reach[None].clamp(first, stop - 1), ring)
            span = slice(row, row + chunk.count)
            spans.append(_Read(span, len(reach), slots, self._mask(seen)))
            row += chunk.count
        return _KindPlan(torch.cat(writes, dim=1), tuple(singles), tuple(spans))

    def _sizes(self, singles: tuple[Chunk, ...], window: int | None) -> Iterator[tuple[list[int], int]]:
        """Rows that read about as much, and how much: a short one isn't padded to the longest of all."""
        sizes: dict[int, list[tuple[int, int]]] = {}
        for row, chunk in enumerate(singles):
            length = chunk.start + 1 - self._begin(_first_seen(chunk.start, window))
            size = max(_SMALLEST_SIZE, 1 << (length - 1).bit_length())
            sizes.setdefault(size, []).append((row, length))
        for members in sizes.values():
            yield [row for row, _ in members], self._padded(max(length for _, length in members))

    def _plan_singles(
        self,
        tables: torch.Tensor,
        position: torch.Tensor,
        window: int | None,
        ring: int | None,
        length: int,
        rows: slice | torch.Tensor,
    ) -> tuple[torch.Tensor, _Read]:
        """Where `rows` at `position` [rows, 1] write, and what they read: `length` positions each."""
        first = torch.zeros_like(position) if window is None else (position - window + 1).clamp_(min=0)
        reach = self._begin(first) + torch.arange(length, device=position.device)
        slots = self._slots(tables, reach.clamp(first, position), ring)
        read = _Read(rows, length, slots, self._mask((reach >= first) & (reach <= position)))
        return self._slots(tables, position, ring), read

    def _begin(self, first: _Position) -> _Position:
        """Where a read begins that needs what is at `first` and behind it."""
        return first // self.padding.begins * self.padding.begins

    def _padded(self, length: int) -> int:
        return rounded_up(length, self.padding.positions)

    def _mask(self, seen: torch.Tensor) -> torch.Tensor:
        # A number, not -inf: a kernel's block that is masked whole must not come to inf - inf. Half of the
        # smallest, for kernels that raise 2 to a power multiply it by 1.44 first.
        mask = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        return mask.masked_fill_(~seen, torch.finfo(self._dtype).min / 2)

    def _tables(self, chunks: Sequence[Chunk], groups: slice) -> torch.Tensor:
        """[groups, chunks, blocks] block ids, short tables padded with block 0, which no slot refers to."""
        tables = [chunk.sequence.table.groups[groups] for chunk in chunks]
        longest = max(len(group) for table in tables for group in table)
        kind = range(len(tables[0]))
        return self._streams.upload(
            torch.tensor([[table[g] + [0] * (longest - len(table[g])) for table in tables] for g in kind])
        )

    def _slots(self, tables: torch.Tensor, positions: torch.Tensor, ring: int | None) -> torch.Tensor:
        """Slots of `positions` [chunks, n] in `tables` [groups, chunks, blocks]: [groups, chunks * n]."""
        entries = positions // self.block_size
        if ring is not None:
            entries = entries % ring
        blocks = tables.gather(2, entries.expand(len(tables), *entries.shape))
        return (blocks * self.block_size + positions % self.block_size).flatten(1)


@frozen(eq=False)
class KvStep:
    """One step's attention over the cache: an `AttentionStep`."""

    _cache: KvCache
    _rows: int
    _groups: tuple[tuple[_KindPlan, int], ...]  # for each group its kind's plan and its index in that

    @classmethod
    def of(cls, cache: KvCache, rows: int, kinds: list[_KindPlan]) -> Self:
        """The step of ``rows`` rows whose groups are those of ``kinds``, in order."""
        return cls(cache, rows, tuple((kind, index) for kind in kinds for index in range(len(kind.write))))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,  # noqa: ARG002 - known from the geometry, for which the loader vouches
    ) -> torch.Tensor:
        """See `AttentionStep.attend`. Rows beyond the planned ones are padding: not stored, result 0."""
        group, plane = self._cache.places[layer]
        kind, index = self._groups[group]
        keys, values = self._cache.keys[plane], self._cache.values[plane]
        keys.index_copy_(0, kind.write[index], key[0, :, : self._rows].transpose(0, 1))
        values.index_copy_(0, kind.write[index], value[0, :, : self._rows].transpose(0, 1))
        rows = query[0].transpose(0, 1)  # [rows, query heads, key dim]
        heads, shared = keys.shape[1], query.shape[1] // keys.shape[1]
        out = rows.new_zeros((*rows.shape[:2], values.shape[2]))
        for read in kind.singles:
            # Query heads that share a key head stand as rows of one head: no key is repeated.
            wanted = rows[read.rows].reshape(-1, heads, shared, rows.shape[2])
            key, value = (
                part.view(len(wanted), read.length, heads, -1).transpose(1, 2)
                for part in self._cache.gather(plane, read.slots[index])
            )
            result = self._attend(wanted, key, value, read.mask[:, None, None], scaling)
            out[read.rows] = result.flatten(1, 2)
        for read in kind.spans:
            wanted = rows[read.rows].transpose(0, 1).reshape(heads, shared, -1, rows.shape[2])
            key, value = (
                part.transpose(0, 1)[:, None].expand(-1, shared, -1, -1)
                for part in self._cache.gather(plane, read.slots[index])
            )
            result = self._attend(wanted, key, value, read.mask, scaling)
            out[read.rows] = result.flatten(0, 1).transpose(0, 1)
        return out[None]

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        scaling: float | None,
    ) -> torch.Tensor:
        """Attention of [any, any, rows, key dim] rows, padded to as many as the cache's padding wants."""
        rows = query.shape[2]
        padded = pad(query, (0, 0, 0, rounded_up(rows, self._cache.padding.queries) - rows))
        result = scaled_dot_product_attention(padded, key, value, attn_mask=mask, scale=scaling)
        return result[:, :, :rows]


def _first_seen(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)
