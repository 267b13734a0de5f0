"""A scheduler in a world without a model, its books checked at every step."""

from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.scheduler import Scheduler
from seedance_server.engine.sequence import GenerationRequest, Sequence


class World:
    """A scheduler with a model that answers at once: each sampled token is a 0."""

    def __init__(self, *, blocks=8, block_size=4, rings=(None,), max_sequences=8, budget=16, reuse=False):
        windows = tuple(ring and 1 for ring in rings) if reuse else ()
        self.pool = BlockPool(total=blocks, block_size=block_size, rings=rings, windows=windows)
        self.scheduler = Scheduler(
            self.pool, max_sequences=max_sequences, prefill_budget=self._prefill_budget
        )
        self.max_sequences, self.budget = max_sequences, budget
        self.asked: tuple[int, int] | None = None  # decodes and prompts of the last step with prompts
        self.live: list[Sequence] = []
        self.arrived = 0

    def _prefill_budget(self, decodes, prompts):
        self.asked = decodes, prompts
        return self.budget

    def add(self, prompt_tokens, new_tokens=1000, **who):
        """A sequence that ends after `new_tokens`, or where it fills the pool alone."""
        request = GenerationRequest(
            id=self.arrived, prompt_ids=(0,) * prompt_tokens, params=SamplingParams(), arrival_s=0.0, **who
        )
        limit = min(prompt_tokens + new_tokens, self.pool.capacity_tokens)
        sequence = Sequence(request, order=self.arrived, seed=0, limit=limit, table=self.pool.new_table())
        self.arrived += 1
        self.live.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def remove(self, sequence):
        self.scheduler.remove(sequence)
        self.live.remove(sequence)

    def step(self):
        """One step; the batch as {sequence: tokens}."""
        batch = self.scheduler.schedule()
        assert len(batch.chunks) <= self.max_sequences
        assert sum(chunk.count for chunk in batch.spans) <= self.budget
        for chunk in batch.chunks:
            assert not chunk.sequence.paused
            assert chunk.start == chunk.sequence.computed
            held = chunk.sequence.table
            assert held.size == self.pool.blocks_for(len(chunk.sequence.token_ids)), (
                "no more than its tokens need"
            )
        self.scheduler.complete(batch)
        for chunk in batch.sampled:
            chunk.sequence.token_ids.append(0)
            if len(chunk.sequence.token_ids) >= chunk.sequence.limit:
                self.remove(chunk.sequence)
        self.check()
        return {chunk.sequence: chunk.count for chunk in batch.chunks}

    def check(self):
        scheduled = self.scheduler.running + self.scheduler.waiting
        assert sorted(s.order for s in scheduled) == [s.order for s in self.live]
        self.pool.check_integrity(sequence.table for sequence in self.live)
        for sequence in self.scheduler.waiting:
            assert sequence.table.size == sequence.computed == 0
