"""Steps of answers alone, recorded once for each size and queued again as one.

A small model's step is hundreds of kernels that each take less time than it takes to ask for them. So a step
all of whose rows bring a token (decodes, and drafts behind them) is padded to one of a few sizes, its inputs
are copied to where the recording reads them, and the recording runs. The invariants: a recording reads and
writes nothing but memory that stays where it is (its inputs, the cache, the weights, the logits' place); a
row of padding writes and reads one block that no sequence has; logits are those of the step as it would be
run otherwise, but for rounding. Where a device refuses to record, steps are run as ever.

The sizes: rows and positions read each grow by doubling, and every row reads as many positions as the longest
needs. A step that would read many times what it needs, one long answer beside short ones, is run as ever too.
It must not know sequences' states or the sampler.
"""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from math import prod
from typing import Any, Self

import torch
from attrs import define, frozen

from seedance_server.engine.attention import STEP_ARGUMENT
from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.device_errors import device_errors
from seedance_server.engine.errors import CaptureFailed, GraphsUnavailable
from seedance_server.engine.kv_cache import KvCache
from seedance_server.engine.padding import USUAL, rounded_up
from seedance_server.engine.streams import Graph, Streams

__all__ = ["DecodeGraphs", "GraphSizes"]

_log = logging.getLogger(__name__)

_SHORTEST = 256
"""Positions that the shortest recordings read: below, attention is a small part of a step. Picked."""

_MOST_READ = 4
"""Times the positions that its rows need, each rounded up by itself, that a step may read. Doubling the rows
alone comes to 2 at most. Picked."""


@frozen
class GraphSizes:
    """The sizes of recorded steps.

    Attributes:
        rows: Ascending.
        lengths: Positions that each row reads, ascending.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def up_to(cls, rows: int, length: int, *, least_rows: int = 1) -> Self:
        """Doubling sizes that end at these, the length rounded up as the cache's reads are."""
        longest = max(_SHORTEST, rounded_up(length, USUAL.positions))
        return cls(tuple(_doubling(least_rows, max(rows, least_rows))), tuple(_doubling(_SHORTEST, longest)))

    def of(self, rows: int, length: int) -> tuple[int, int] | None:
        """The smallest that holds a step; None where none does."""
        if rows > self.rows[-1] or length > self.lengths[-1]:
            return None
        return self.rows[bisect_left(self.rows, rows)], self.lengths[bisect_left(self.lengths, length)]


def _doubling(first: int, last: int) -> Iterator[int]:
    while first < last:
        yield first
        first *= 2
    yield last


def _needed(batch: Batch) -> int:
    """Positions that a batch reads where each row is padded to the length that suits it."""
    return sum(
        chunk.count * max(_SHORTEST, 1 << (chunk.start + chunk.count - 1).bit_length())
        for chunk in batch.chunks
    )


@define(eq=False)
class _Recording:
    """One size: where its inputs lie, and what runs on them.

    Attributes:
        rows: Of the step.
        length: Positions that each reads.
        shapes: For each kind of layer (groups, rows, blocks): its tables.
        inputs: Int64: ids [rows], positions [rows], the tables.
        graph: None until it is recorded.
    """

    rows: int
    length: int
    shapes: tuple[tuple[int, int, int], ...]
    inputs: torch.Tensor
    graph: Graph | None = None


class DecodeGraphs:
    """The recorded steps of one engine.

    Args:
        model: The model, as the runner calls it.
        cache: Where its keys and values are.
        streams: Those of its device.
        sizes: Which to record.
        vocab_size: Width of a row of logits.
        device: Where all of it is.
        padding_block: A block of the cache that no sequence's table holds.

    Attributes:
        recorded: How many sizes have been.
        replays: Steps that ran as a recording.
        obstacle: Why no step does any more, one line; None while they do.
    """

    def __init__(
        self,
        model: Any,
        cache: KvCache,
        streams: Streams,
        *,
        sizes: GraphSizes,
        vocab_size: int,
        device: torch.device,
        padding_block: int,
    ) -> None:
        self._model = model
        self._cache = cache
        self._streams = streams
        self._sizes = sizes
        self._device = device
        self._padding_block = padding_block
        self._recordings: dict[tuple[int, int], _Recording] = {}
        most = sizes.rows[-1]
        self._logits = torch.empty((most, vocab_size), dtype=model.dtype, device=device)
        self._wanted = torch.arange(most, device=device)  # the rows whose logits a step brings: all
        self.recorded = 0
        self.replays = 0
        self.obstacle: str | None = None

    @torch.inference_mode()
    def warm_up(self, *, must: bool = False) -> str:
        """Record the steps of short answers, for each number of rows; the others follow when they are needed.

        The largest first: what it leaves of the graphs' memory suffices for the others.

        Args:
            must: Whether it is an error if they can't be recorded.

        Returns:
            One line for whoever starts the server.

        Raises:
            GraphsUnavailable: They can't, and must.
            OutOfDeviceMemory: There is no room for them.
        """
        with device_errors():
            for rows in reversed(self._sizes.rows):
                self._streams.begin_step()
                recording = self._recording(rows, self._sizes.lengths[0])
                self._fill(recording, ())
                if not self._replay(recording):
                    break
        if self.obstacle is None:
            return f"answers' steps are recorded: {self.recorded} sizes, up to {self._sizes.rows[-1]} rows"
        if must:
            raise GraphsUnavailable(self.obstacle)
        return f"answers' steps are run one kernel at a time: recording them failed ({self.obstacle})"

    def run(self, batch: Batch) -> torch.Tensor | None:
        """Run a step as a recording.

        Args:
            batch: Not empty.

        Returns:
            Logits [rows, vocabulary] as `ModelRunner.run` does, until the next call; None for a step that
            can't be a recording, which then has had no effect.

        Raises:
            torch.OutOfMemoryError: There is no room for one more size.
        """
        if self.obstacle is not None or any(chunk.sampled_rows != chunk.count for chunk in batch.chunks):
            return None
        longest = max(chunk.start + chunk.count for chunk in batch.chunks)
        size = self._sizes.of(batch.tokens, longest)
        if size is None or prod(size) > _MOST_READ * _needed(batch):
            return None
        recording = self._recording(*size)
        self._fill(recording, batch.chunks)
        if not self._replay(recording):
            return None
        self.replays += 1
        return self._logits[: batch.tokens]

    def _recording(self, rows: int, length: int) -> _Recording:
        if (recording := self._recordings.get((rows, length))) is None:
            blocks = -(-length // self._cache.block_size)
            shapes = tuple(
                (groups.stop - groups.start, rows, blocks if ring is None else ring)
                for groups, _, ring in self._cache.kinds
            )
            numbers = 2 * rows + sum(map(prod, shapes))
            inputs = torch.zeros(numbers, dtype=torch.int64, device=self._device)
            recording = self._recordings[rows, length] = _Recording(rows, length, shapes, inputs)
        return recording

    def _fill(self, recording: _Recording, chunks: tuple[Chunk, ...]) -> None:
        """Copy a step's inputs to where its recording reads them; rows beyond it are padding."""
        ids, positions = array("q"), array("q")
        for chunk in chunks:
            ids.extend(chunk.token_ids)
            positions.extend(range(chunk.start, chunk.start + chunk.count))
        unused = recording.rows - len(ids)
        padding = array("q", [0]) * unused
        flat = ids + padding + positions + padding
        for (groups, _, _), (_, _, width) in zip(self._cache.kinds, recording.shapes, strict=True):
            nothing = array("q", [self._padding_block]) * width
            for group in range(groups.start, groups.stop):
                for chunk in chunks:
                    table = array("q", chunk.sequence.table.groups[group][:width])
                    flat += (table + nothing[len(table) :]) * chunk.count
                flat += nothing * unused
        recording.inputs.copy_(self._streams.upload(torch.frombuffer(flat, dtype=torch.int64)))

    def _replay(self, recording: _Recording) -> bool:
        """Run what is recorded, or record it; False where that can't be."""
        if recording.graph is None:
            try:
                recording.graph = self._streams.capture(lambda: self._step(recording))
            except CaptureFailed as error:
                self.obstacle = error.reason
                self._recordings.clear()
                _log.warning("%s; steps are run one kernel at a time from now on", error)
                return False
            self.recorded += 1
        recording.graph.replay()
        return True

    def _step(self, recording: _Recording) -> None:
        """What is recorded: from inputs to logits, all on the device."""
        rows, shapes = recording.rows, recording.shapes
        sizes = [rows, rows, *map(prod, shapes)]
        ids, positions, *parts = torch.split(recording.inputs, sizes)
        tables = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        logits = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=self._wanted[:rows],
            **{STEP_ARGUMENT: self._cache.plan_rows(tables, positions, recording.length)},
        ).logits
        self._logits[:rows].copy_(logits[0])
