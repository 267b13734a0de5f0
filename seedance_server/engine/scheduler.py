"""Which sequences take part in the next step. Pure Python, no clock, no randomness.

The rules, in the order in which `schedule` applies them:

1. **First come, first served within a tenant; shares between tenants.** Where rows or prompt tokens don't
   suffice for all, a `FairQueue` of each says whose turn it is. A preempted or resumed sequence is back in
   its old place.
2. **Decodes first.** Each running sequence that isn't paused contributes its one decode token, a throttled
   one in every other step. Only where there are more of them than rows, prompts take rows from them: as many
   as their tenants' shares say.
3. **Prompts share what is left**: the rows, and the prompt tokens that the step may hold. Sequences that wait
   join here, with blocks for all their tokens and one more for each running sequence (so that a joiner isn't
   thrown out again by the next decode). Of a tenant's, the first one that doesn't fit blocks those behind it:
   else a long prompt would starve.
   What the pool still holds of its tenant's earlier prompts and answers, a joiner needn't compute.
4. **A sequence takes part when it has blocks for all its present tokens**, never for what it may yet
   generate; a draft goes along only where blocks are free. When the pool is empty, blocks are taken from
   paused sequences first, then from the heaviest tenant (by blocks over weight), the newest of its sequences
   first, which may be the one that asks. The victim loses its keys and values, keeps its tokens, and computes
   again. For one that wants to join, blocks are taken only from paused sequences, and from a tenant that
   stays no lighter than the one that joins.

Progress: the oldest sequence of all that isn't paused is never a victim. To join it may take the blocks of
any other tenant, and its own tenant's newer ones wait behind it. Its turn comes (see `FairQueue`), and alone
it fits (the engine refuses those that don't), so it ends; then the next one is the oldest.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice

from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.fair_queue import FairQueue, Flow
from seedance_server.engine.prefix_cache import BlockKey, extend_keys
from seedance_server.engine.sequence import Sequence, SequenceStatus

__all__ = ["Scheduler"]


def _arrival(sequence: Sequence) -> int:
    return sequence.order


class Scheduler:
    """Continuous batching over one block pool.

    Args:
        pool: The blocks; nobody else allocates from it.
        max_sequences: Most chunks in one batch; the attribute of that name may be changed between steps.
        prefill_budget: How many prompt tokens (in chunks of more than one, or of a joining sequence) a batch
            may hold beside so many decodes, where there are rows for so many prompts; at least 1.
    """

    def __init__(
        self, pool: BlockPool, *, max_sequences: int, prefill_budget: Callable[[int, int], int]
    ) -> None:
        self._pool = pool
        self.max_sequences = max_sequences
        self._prefill_budget = prefill_budget
        self._running: list[Sequence] = []
        self._waiting: dict[Flow, list[Sequence]] = {}
        self._weights: dict[Flow, float] = {}
        self._rows = FairQueue(self._weights)
        self._prompts = FairQueue(self._weights)
        self._chunks: dict[Sequence, Chunk] = {}  # of the step that is being scheduled
        self._step = 0
        self.preemptions = 0
        self.queried_tokens = 0
        self.reused_tokens = 0

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences without blocks, oldest first."""
        return tuple(merge(*self._waiting.values(), key=_arrival))

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences with blocks, oldest first; some may be paused."""
        return tuple(self._running)

    def has_work(self) -> bool:
        """Whether a sequence isn't paused. All others may be throttled, so that a batch is empty."""
        queues = (self._running, *self._waiting.values())
        return any(not sequence.paused for queue in queues for sequence in queue)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. It must fit the pool alone, at its limit."""
        self._weights[sequence.flow] = sequence.request.weight
        self._queue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks at once, whatever it was doing."""
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
        else:
            self._unqueue(sequence)
        sequence.status = SequenceStatus.FINISHED
        self._pool.release(sequence.table)
        flow = sequence.flow
        if flow not in self._waiting and all(other.flow != flow for other in self._running):
            del self._weights[flow]

    def schedule(self) -> Batch:
        """Choose the next step's chunks, after which each has its blocks.

        Returns:
            The batch; empty if nothing is left but paused sequences, and throttled ones that rest.
        """
        self._step += 1
        self._chunks.clear()
        prompts = self._prompts_by_flow()
        heads = {flow: sequences[0] for flow, sequences in prompts.items() if sequences}
        rows = self._rows.begin(self._wanted_rows(heads))
        budget: int | None = None
        while len(self._chunks) < self.max_sequences:
            joining: dict[Flow, list[Sequence]] = {}
            for sequence in rows:
                if sequence is heads.get(sequence.flow):
                    joining[sequence.flow] = prompts[sequence.flow]  # it keeps a row for its flow's prompts
                elif self._decode(sequence):
                    rows.charge(sequence.flow, self._chunks[sequence].count)  # its draft, too
                if len(self._chunks) + len(joining) >= self.max_sequences:
                    break
            if not joining:
                break
            if budget is None:
                room = self.max_sequences - len(self._chunks)
                waiting = sum(map(len, prompts.values()))
                budget = self._prefill_budget(len(self._chunks), min(waiting, room))
            for chunk in self._prefill(joining, budget):
                rows.charge(chunk.sequence.flow, 1)
                budget -= chunk.count
        rows.end()
        return Batch.of(self._chunks.values())

    def complete(self, batch: Batch) -> None:
        """Note that the keys and values of a batch's tokens are in their blocks; drafts don't count yet."""
        for chunk in batch.chunks:
            chunk.sequence.computed += chunk.count - len(chunk.draft)
            self.record(chunk.sequence)

    def record(self, sequence: Sequence) -> None:
        """Note which of its blocks are complete; once more before one ends whose draft was right."""
        full = sequence.computed // self._pool.block_size
        if self._pool.reuses and full > sequence.recorded:
            keys = self._keys(sequence, full)
            for block in range(sequence.recorded, full):
                self._pool.record(sequence.table, block, keys[block])
            sequence.recorded = full

    def _keys(self, sequence: Sequence, blocks: int) -> list[BlockKey]:
        """Those of the first so many full blocks of a sequence."""
        block_size = self._pool.block_size
        extend_keys(sequence.keys, sequence.request.tenant, sequence.token_ids, block_size, blocks)
        return sequence.keys[:blocks]

    def _wanted_rows(self, heads: dict[Flow, Sequence]) -> dict[Flow, list[Sequence]]:
        """Each flow's decodes and, for its prompts, the oldest of them, by arrival."""
        wanted: dict[Flow, list[Sequence]] = {}
        for sequence in self._running:
            if not (sequence.paused or sequence.in_prompt or self._rests(sequence)):
                wanted.setdefault(sequence.flow, []).append(sequence)
        for flow, head in heads.items():
            insort(wanted.setdefault(flow, []), head, key=_arrival)
        return wanted

    def _prompts_by_flow(self) -> dict[Flow, list[Sequence]]:
        """What each flow has to compute before it decodes, running or waiting, by arrival."""
        prompts: dict[Flow, list[Sequence]] = {}
        for sequence in self._running:
            if sequence.in_prompt and not sequence.paused:
                prompts.setdefault(sequence.flow, []).append(sequence)
        for flow, waiting in self._waiting.items():
            # No step takes more; the rest of a long queue costs nothing.
            first = list(islice((each for each in waiting if not each.paused), self.max_sequences))
            prompts[flow] = list(merge(prompts.get(flow, ()), first, key=_arrival))
        return prompts

    def _rests(self, sequence: Sequence) -> bool:
        return sequence.throttled and sequence.last_step == self._step - 1

    def _decode(self, sequence: Sequence) -> bool:
        """Let a running sequence take part, unless another one's need for blocks has ended its running."""
        if sequence.status is not SequenceStatus.RUNNING or not self._make_room(sequence, 1):
            return False
        self._take_part(sequence, 1, self._draft(sequence))
        return True

    def _take_part(self, sequence: Sequence, count: int, draft: tuple[int, ...] = ()) -> Chunk:
        sequence.last_step = self._step
        chunk = self._chunks[sequence] = Chunk.of(sequence, count, draft)
        return chunk

    def _draft(self, sequence: Sequence) -> tuple[int, ...]:
        """Its draft, if there are blocks for it that nobody needs."""
        tokens = len(sequence.token_ids) + len(sequence.draft)
        fits = self._pool.reserve(sequence.table, tokens)
        return sequence.draft if fits and self._pool.begin(sequence.table, sequence.computed, tokens) else ()

    def _prefill(self, prompts: dict[Flow, list[Sequence]], budget: int) -> list[Chunk]:
        """Cut prompt tokens into chunks; returns those."""
        cut: list[Chunk] = []
        blocked: set[Flow] = set()
        turns = self._prompts.begin(prompts)
        while budget and len(self._chunks) < self.max_sequences:
            if (sequence := next(turns, None)) is None:
                break
            flow = sequence.flow
            if sequence.status is SequenceStatus.WAITING and (flow in blocked or not self._join(sequence)):
                blocked.add(flow)
                continue
            count = min(sequence.remaining, budget)
            if not self._make_room(sequence, count):
                continue
            cut.append(self._take_part(sequence, count))
            budget -= count
            turns.charge(flow, count, rest=sequence if count < sequence.remaining else None)
        turns.end()
        return cut

    def _join(self, sequence: Sequence) -> bool:
        """Give a waiting sequence its blocks, if need be at the expense of those that must yield to it."""
        active = sum(not other.paused for other in self._running)
        tokens, block_size = len(sequence.token_ids), self._pool.block_size
        keys: list[BlockKey] = []
        if self._pool.reuses:
            keys = self._keys(sequence, (tokens - 1) // block_size)  # one token at least is computed
            keys = keys[: self._pool.find_prefix(keys)]
        wanted = self._pool.blocks_for(tokens) - self._pool.blocks_in_use(keys)
        if not self._yield_to(sequence, wanted, headroom=active * len(self._pool.rings)):
            return False
        if not self._pool.open(sequence.table, tokens, keys):
            return False  # those that yielded held blocks in common with others
        sequence.computed, sequence.recorded = len(keys) * block_size, len(keys)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
            self.queried_tokens += sequence.prompt_tokens
            self.reused_tokens += sequence.cached_tokens
        self._unqueue(sequence)
        insort(self._running, sequence, key=_arrival)
        sequence.status = SequenceStatus.RUNNING
        return True

    def _yield_to(self, sequence: Sequence, wanted: int, headroom: int) -> bool:
        """Bring the free blocks up to what a joining sequence needs, or touch nothing."""
        missing = wanted - self._pool.free_blocks
        if missing + headroom <= 0:
            return True
        oldest = self._oldest()
        held = self._blocks_by_flow()
        able = [other for other in self._running if other is not oldest]
        candidates = [other for other in able if other.paused]
        if missing + headroom <= sum(other.table.size for other in candidates):
            missing += headroom
        else:
            # No headroom then: who needs a block next takes it from the heaviest, which isn't the joiner.
            candidates += [other for other in able if not other.paused and other.flow != sequence.flow]
            after = (held.get(sequence.flow, 0) + wanted) / self._rows.weight(sequence.flow)
            others = [held[flow] / self._rows.weight(flow) for flow in held if flow != sequence.flow]
            if not others or (sequence is not oldest and after > max(others)):
                return False
        victims: list[Sequence] = []
        while missing > 0:
            first = [other for other in candidates if other.paused] or candidates
            if not first:
                return False
            victim = self._newest_of_heaviest(first, held)
            held[victim.flow] -= victim.table.size
            if not (victim.paused or sequence is oldest):
                rest = held[victim.flow] / self._rows.weight(victim.flow)
                if rest < after:
                    return False
            candidates.remove(victim)
            victims.append(victim)
            missing -= victim.table.size
        for victim in victims:
            self._preempt(victim)
        return True

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Get blocks for the next `count` tokens of a running sequence, at others' expense; or say no."""
        pool, table, start = self._pool, sequence.table, sequence.computed
        while not (pool.reserve(table, len(sequence.token_ids)) and pool.begin(table, start, start + count)):
            oldest = self._oldest()
            able = [other for other in self._running if other is not oldest]
            paused = [other for other in able if other.paused]
            victim = self._newest_of_heaviest(paused or able, self._blocks_by_flow())
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _newest_of_heaviest(self, sequences: Iterable[Sequence], held: dict[Flow, int]) -> Sequence:
        def heaviness(sequence: Sequence) -> tuple[float, int]:
            return held[sequence.flow] / self._rows.weight(sequence.flow), sequence.order

        return max(sequences, key=heaviness)

    def _blocks_by_flow(self) -> dict[Flow, int]:
        held: dict[Flow, int] = {}
        for sequence in self._running:
            held[sequence.flow] = held.get(sequence.flow, 0) + sequence.table.size
        return held

    def _oldest(self) -> Sequence | None:
        queues = (self._running, *self._waiting.values())
        firsts = (next((each for each in queue if not each.paused), None) for queue in queues)
        return min((first for first in firsts if first is not None), key=_arrival, default=None)

    def _preempt(self, sequence: Sequence) -> None:
        self._chunks.pop(sequence, None)
        self._pool.release(sequence.table)
        self._running.remove(sequence)
        self._queue(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.computed = sequence.recorded = 0
        self.preemptions += 1

    def _queue(self, sequence: Sequence) -> None:
        insort(self._waiting.setdefault(sequence.flow, []), sequence, key=_arrival)

    def _unqueue(self, sequence: Sequence) -> None:
        queue = self._waiting[sequence.flow]
        queue.remove(sequence)
        if not queue:
            del self._waiting[sequence.flow]
