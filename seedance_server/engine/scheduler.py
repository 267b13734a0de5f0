"""Which sequences take part in the next step. Pure Python, no clock, no randomness.

The rules, in the order in which `schedule` applies them:

1. **Arrival order decides everything.** Both queues are sorted by it; a preempted or resumed sequence is back
   in its old place, ahead of whoever came later.
2. **A step is a walk over the running sequences.** Each one that isn't paused contributes its one decode
   token, a throttled one in every other step; sequences still in their prompt share `prefill_budget_tokens`
   between them. Decodes never wait for prompts.
3. **A sequence takes part when it has blocks for all its present tokens**, never for what it may yet
   generate. When the pool is empty, blocks are taken from the newest paused sequence, then from the newest
   running one, which may be the one that asks. The victim loses its keys and values, keeps its tokens, and
   computes again.
4. **Waiting sequences join at the end of the walk**, if there are rows, budget and blocks for all their
   tokens and one more for each running sequence (so that a joiner isn't thrown out again by the next decode).
   The first one that doesn't fit blocks those behind it: else a long prompt would starve.

Progress: the oldest sequence that isn't paused is never a victim, and alone it fits (the engine refuses those
that don't), so it ends; then the next one is the oldest.
"""

from bisect import insort

from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.sequence import Sequence, SequenceStatus

__all__ = ["Scheduler"]


def _arrival(sequence: Sequence) -> int:
    return sequence.order


class Scheduler:
    """Continuous batching over one block pool.

    Args:
        pool: The blocks; nobody else allocates from it.
        max_sequences: Most chunks in one batch.
        prefill_budget_tokens: Most tokens in chunks of more than one token, per batch.
    """

    def __init__(self, pool: BlockPool, *, max_sequences: int, prefill_budget_tokens: int) -> None:
        self._pool = pool
        self._max_sequences = max_sequences
        self._budget = prefill_budget_tokens
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._step = 0
        self.preemptions = 0

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences without blocks, oldest first."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences with blocks, oldest first; some may be paused."""
        return tuple(self._running)

    def has_work(self) -> bool:
        """Whether `schedule` would return a batch that isn't empty."""
        return any(not sequence.paused for queue in (self._running, self._waiting) for sequence in queue)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. It must fit the pool alone, at its limit."""
        insort(self._waiting, sequence, key=_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks at once, whatever it was doing."""
        (self._running if sequence.status is SequenceStatus.RUNNING else self._waiting).remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self._pool.release(sequence.table)

    def schedule(self) -> Batch:
        """Choose the next step's chunks, after which each has its blocks.

        Returns:
            The batch; empty if nothing but paused sequences is left.
        """
        chunks: list[Chunk] = []
        budget = self._budget
        self._step += 1
        for sequence in tuple(self._running):
            if len(chunks) == self._max_sequences:
                break
            # An older one's need for blocks may have taken this one off the walk meanwhile.
            if sequence.paused or sequence.status is not SequenceStatus.RUNNING:
                continue
            if sequence.throttled and sequence.last_step == self._step - 1:
                continue
            count = 1 if sequence.remaining == 1 else min(sequence.remaining, budget)
            if count and self._make_room(sequence):
                chunks.append(Chunk.of(sequence, count))
                budget -= count if sequence.remaining > 1 else 0
        self._admit(chunks, budget)
        return Batch.of(chunks)

    def complete(self, batch: Batch) -> None:
        """Note that the keys and values of a batch's tokens are in their blocks."""
        for chunk in batch.chunks:
            chunk.sequence.computed += chunk.count
            chunk.sequence.last_step = self._step

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        for sequence in tuple(self._waiting):
            if budget == 0 or self._active() >= self._max_sequences:
                return
            if sequence.paused:
                continue
            headroom = len(chunks) * len(self._pool.rings)
            if not self._evict_paused(self._pool.blocks_for(len(sequence.token_ids)) + headroom):
                return
            self._pool.reserve(sequence.table, len(sequence.token_ids))
            self._waiting.remove(sequence)
            insort(self._running, sequence, key=_arrival)
            sequence.status = SequenceStatus.RUNNING
            count = min(sequence.remaining, budget)
            chunks.append(Chunk.of(sequence, count))
            budget -= count

    def _active(self) -> int:
        return sum(not sequence.paused for sequence in self._running)

    def _make_room(self, sequence: Sequence) -> bool:
        """Get blocks for all tokens of `sequence` at the expense of newer ones; False if it is the newest."""
        while not self._pool.reserve(sequence.table, len(sequence.token_ids)):
            paused = [other for other in self._running if other.paused]
            victim = (paused or self._running)[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _evict_paused(self, wanted: int) -> bool:
        """Bring the free blocks up to `wanted` by paused sequences alone, or touch nothing."""
        paused = [other for other in self._running if other.paused]
        if self._pool.free_blocks + sum(other.table.size for other in paused) < wanted:
            return False
        while self._pool.free_blocks < wanted:
            self._preempt(paused.pop())
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._pool.release(sequence.table)
        self._running.remove(sequence)
        insort(self._waiting, sequence, key=_arrival)
        sequence.status = SequenceStatus.WAITING
        sequence.computed = 0
        self.preemptions += 1
