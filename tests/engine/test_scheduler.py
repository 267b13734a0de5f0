import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedance_server.engine.sequence import SequenceStatus
from tests.engine.scheduling import World
from tests.engine_strategies import output_lengths, picks, prompt_lengths, requesters, scheduler_shapes


def test_scheduler_lets_a_request_join_at_the_next_step_and_leave_when_it_ends():
    """Continuous batching: nobody waits for a batch to be full or to be over."""
    world = World()
    first = world.add(3)
    assert world.step() == {first: 3}
    second = world.add(2, new_tokens=1)
    assert world.step() == {first: 1, second: 2}
    assert second.status is SequenceStatus.FINISHED
    assert world.step() == {first: 1}


def test_scheduler_shares_the_prefill_budget_in_order_of_arrival_beside_decodes():
    """A long prompt is cut into chunks and never holds up a decode."""
    world = World(blocks=64, budget=10)
    decoding = world.add(2)
    world.step()
    long, short = world.add(15), world.add(4)
    assert world.step() == {decoding: 1, long: 10}
    assert world.step() == {decoding: 1, long: 5, short: 4}
    assert world.step() == {decoding: 1, long: 1, short: 1}


def test_scheduler_asks_for_a_budget_beside_its_decodes_for_the_prompts_that_have_rows():
    """Who is paused doesn't wait, and whoever has no row in this step gains nothing from a longer one."""
    world = World(blocks=64, max_sequences=4)
    world.add(2)
    world.step()
    assert world.asked == (0, 1)
    world.add(2).paused = True
    world.add(20)
    world.step()
    assert world.asked == (1, 1)
    for _ in range(5):
        world.add(2)
    world.step()
    assert world.asked == (1, 3)


def test_scheduler_reserves_for_the_tokens_that_are_there_only():
    """The blocks held don't depend on how much was asked for."""
    world = World(blocks=8)
    sequence = world.add(3, new_tokens=10**8)
    world.step()
    assert world.pool.used_blocks == 1
    assert sequence.limit == world.pool.capacity_tokens


def test_scheduler_preempts_the_newest_and_keeps_its_place_before_later_arrivals():
    """Under pressure the newest gives way, and comes back ahead of those that came after it."""
    world = World(blocks=5)
    old, new = world.add(7, new_tokens=6), world.add(7)
    assert [set(world.step()) for _ in range(3)] == [{old, new}, {old, new}, {old}]
    assert (new.status, new.computed, new.completion_tokens) == (SequenceStatus.WAITING, 0, 2)
    assert world.scheduler.preemptions == 1
    late = world.add(1)
    assert [set(world.step()) for _ in range(3)] == [{old}] * 3
    assert old.status is SequenceStatus.FINISHED
    assert list(world.step()) == [late, new]  # both fit; rows of one token come first
    assert world.scheduler.running == (new, late)


def test_scheduler_evicts_a_paused_sequence_first_even_an_older_one():
    """A stalled reader's blocks go to those who can use them; it goes on from its old place."""
    world = World(blocks=4)
    paused = world.add(8)
    world.step()
    paused.paused = True
    active = world.add(8)
    for _ in range(5):
        assert active in world.step()
    assert (paused.status, paused.computed) == (SequenceStatus.WAITING, 0)
    paused.paused = False
    world.remove(active)
    assert paused in world.step()


def test_scheduler_keeps_the_blocks_of_a_paused_sequence_while_there_is_room():
    """Pausing alone costs nothing: the sequence goes on with its next token."""
    world = World(blocks=16)
    sequence, other = world.add(8), world.add(4)
    world.step()
    sequence.paused = True
    assert world.step() == {other: 1}
    sequence.paused = False
    assert world.step() == {sequence: 1, other: 1}


def test_scheduler_lets_nobody_overtake_a_first_that_does_not_fit():
    """A long prompt isn't starved by short ones that would fit now."""
    world = World(blocks=6, budget=32)
    running = world.add(12)
    world.step()
    long, short = world.add(16), world.add(1)
    for _ in range(3):
        assert set(world.step()) == {running}
    world.remove(running)
    assert set(world.step()) == {long, short}


def test_scheduler_passes_by_a_paused_sequence_that_waits():
    """Who is paused before its first step doesn't block the door."""
    world = World()
    first, second = world.add(4), world.add(4)
    first.paused = True
    assert world.step() == {second: 4}


def test_scheduler_holds_the_width_of_a_batch_when_many_resume():
    """A step has at most max_sequences rows, the oldest first."""
    world = World(blocks=64, max_sequences=2)
    first, second, third = world.add(4), world.add(4), world.add(4)
    world.step()
    first.paused = True
    assert set(world.step()) == {second, third}
    first.paused = False
    assert set(world.step()) == {first, second}


def test_scheduler_lets_a_throttled_sequence_take_part_in_every_other_step():
    """A reader that falls behind a little slows its own sequence, and nobody else's."""
    world = World()
    slow, quick = world.add(1), world.add(1)
    slow.throttled = True
    assert [slow in world.step() for _ in range(6)] == [True, False] * 3
    assert quick.completion_tokens == 6
    slow.throttled = False
    assert all(slow in world.step() for _ in range(3))


GOLD, BRONZE = {"tenant": "gold", "weight": 3.0}, {"tenant": "bronze", "weight": 1.0}


def test_scheduler_computes_only_what_the_pool_no_longer_holds():
    """A prompt that begins like an earlier one goes on from there; one token at least is computed."""
    world = World(blocks=100, budget=64, reuse=True)
    first = world.add(13, new_tokens=1)
    assert world.step() == {first: 13}
    again, longer, foreign = world.add(13), world.add(16), world.add(13, tenant="b")
    assert world.step() == {again: 1, longer: 4, foreign: 13}
    assert (again.cached_tokens, longer.cached_tokens, foreign.cached_tokens) == (12, 12, 0)
    assert world.scheduler.reused_tokens == 24
    assert world.scheduler.queried_tokens == 13 + 13 + 16 + 13


def test_scheduler_counts_a_prompt_as_cached_by_its_first_step_alone():
    """What a preempted sequence finds of its own is no gain."""
    world = World(blocks=5, reuse=True)
    old, lost = world.add(7), world.add(7)
    world.step()
    while not world.scheduler.preemptions:
        world.step()
    assert lost.status is SequenceStatus.WAITING
    world.remove(old)
    world.step()
    assert (lost.status, lost.cached_tokens) == (SequenceStatus.RUNNING, 0)
    assert world.scheduler.reused_tokens == 0


def share_of_gold(steps):
    """Of all tokens in some steps."""
    tokens = [(sequence.flow.tenant, count) for step in steps for sequence, count in step.items()]
    return sum(count for tenant, count in tokens if tenant == "gold") / sum(count for _, count in tokens)


def test_scheduler_shares_rows_by_weight_when_there_are_more_decodes_than_rows():
    """A full batch takes turns: 3 tokens to 1, over any few steps, whoever has more sequences."""
    world = World(blocks=1000, max_sequences=4, budget=64)
    for _ in range(8):
        world.add(1, **BRONZE)
    for _ in range(4):
        world.add(1, **GOLD)
    steps = [world.step() for _ in range(60)]
    assert all(len(step) == 4 for step in steps[3:])
    assert share_of_gold(steps[-40:]) == pytest.approx(0.75, abs=0.02)


def test_scheduler_shares_prompt_tokens_by_weight():
    """Who sends long prompts pays for them in tokens, not in requests."""
    world = World(blocks=10_000, max_sequences=64, budget=32)
    for _ in range(40):
        world.add(200, new_tokens=1, **BRONZE)
        world.add(20, new_tokens=1, **GOLD)
        world.add(20, new_tokens=1, **GOLD)
    steps = [world.step() for _ in range(60)]
    assert share_of_gold(steps) == pytest.approx(0.75, abs=0.04)


def test_scheduler_lets_a_tenant_in_at_once_when_another_one_has_all_rows():
    """Full of bronze, then gold: gold doesn't wait until one of bronze's ends."""
    world = World(blocks=1000, max_sequences=4)
    bronze = [world.add(1, **BRONZE) for _ in range(8)]
    world.step()
    gold = world.add(3, **GOLD)
    assert gold in world.step()
    steps = [world.step() for _ in range(12)]
    assert all(gold in step and len(step) == 4 for step in steps)
    assert all(bronze[0] in step for step in steps), "first come, first served within bronze"


def test_scheduler_takes_blocks_from_the_newest_of_the_heaviest_tenant():
    """Pressure is answered by the one who causes most of it, by blocks over weight."""
    world = World(blocks=10)
    heavy = [world.add(8, **BRONZE) for _ in range(2)]
    light = world.add(8, **GOLD)
    while not world.scheduler.preemptions:
        world.step()
    assert [sequence.status for sequence in (*heavy, light)] == [
        SequenceStatus.RUNNING,
        SequenceStatus.WAITING,
        SequenceStatus.RUNNING,
    ]


def test_scheduler_lets_a_lighter_tenant_join_at_the_expense_of_a_heavier_one():
    """A pool full of bronze makes room for gold until gold has its share of the blocks, and no more."""
    world = World(blocks=16, max_sequences=16)
    for _ in range(8):
        world.add(4, **BRONZE)
    world.step()
    for _ in range(12):
        world.add(4, **GOLD)
    for _ in range(3):
        world.step()
        held = {"gold": 0, "bronze": 0}
        for sequence in world.scheduler.running:
            held[sequence.flow.tenant] += sequence.table.size
    assert held["gold"] >= 2 * held["bronze"] > 0


def test_scheduler_ends_a_heavy_sequence_beside_a_stream_of_light_ones():
    """The oldest of all goes on and ends, whatever its weight and however many arrive."""
    world = World(blocks=12, max_sequences=4)
    heavy = world.add(30, new_tokens=10, **BRONZE)
    for _ in range(200):
        if heavy.status is SequenceStatus.FINISHED:
            break
        while len(world.live) < 8:
            world.add(4, new_tokens=5, **GOLD)
        world.step()
    assert heavy.status is SequenceStatus.FINISHED


def test_scheduler_puts_a_preempted_sequence_before_its_tenants_later_ones():
    """Losing the blocks doesn't lose the place in the queue."""
    world = World(blocks=6)
    old, lost, late = world.add(8), world.add(8), world.add(8)
    while not world.scheduler.preemptions:
        world.step()
    assert world.scheduler.waiting == (lost, late)
    assert old in world.step()


def test_scheduler_serves_a_higher_class_first():
    """Weights share within a class; a class goes before the one below, which keeps a trickle."""
    world = World(blocks=1000, max_sequences=4)
    low = [world.add(1, tenant="a", weight=8.0) for _ in range(8)]
    high = [world.add(1, tenant="b", priority=1) for _ in range(8)]
    world.step()
    steps = [world.step() for _ in range(17)]
    served = [sequence for step in steps for sequence in step]
    assert sum(sequence in low for sequence in served) == pytest.approx(4, abs=1)
    assert all(sum(sequence in high for sequence in step) >= 3 for step in steps)


def test_scheduler_has_no_work_when_all_are_paused():
    """A paused sequence keeps nobody busy."""
    world = World()
    sequence = world.add(4)
    assert world.scheduler.has_work()
    sequence.paused = True
    assert not world.scheduler.has_work()
    assert world.step() == {}


def test_scheduler_takes_a_draft_along_while_blocks_are_free_and_never_preempts_for_it():
    """A guess must not cost anybody anything."""
    world = World(blocks=3)
    first, second = world.add(4, new_tokens=8), world.add(3)
    assert world.scheduler.schedule().tokens == 7
    first.computed, second.computed = 4, 3
    for sequence in (first, second):
        sequence.token_ids.append(0)
    first.draft = (5, 6, 7)
    second.draft = (5, 6)
    batch = world.scheduler.schedule()
    drafts = {chunk.sequence: chunk.draft for chunk in batch.chunks}
    assert drafts == {first: (5, 6, 7), second: ()}
    assert world.scheduler.preemptions == 0
    world.scheduler.complete(batch)
    assert (first.computed, second.computed) == (5, 4)


class SchedulerMachine(RuleBasedStateMachine):
    """Any history of arrivals, cancels, pauses and steps keeps the books right and every sequence moving."""

    @initialize(shape=scheduler_shapes)
    def start(self, shape):
        self.world = World(**shape)

    @rule(prompt=prompt_lengths, new=output_lengths, who=requesters)
    def arrive(self, prompt, new, who):
        self.world.add(min(prompt, self.world.pool.capacity_tokens - 1), new, **who)

    @precondition(lambda self: self.world.live)
    @rule(pick=picks)
    def cancel(self, pick):
        self.world.remove(self.world.live[pick % len(self.world.live)])

    @precondition(lambda self: self.world.live)
    @rule(pick=picks)
    def toggle_pause(self, pick):
        sequence = self.world.live[pick % len(self.world.live)]
        sequence.paused = not sequence.paused

    @precondition(lambda self: self.world.live)
    @rule(pick=picks)
    def toggle_throttle(self, pick):
        sequence = self.world.live[pick % len(self.world.live)]
        sequence.throttled = not sequence.throttled

    @rule()
    def step(self):
        active = [sequence for sequence in self.world.live if not sequence.paused]
        alone = len({sequence.flow for sequence in self.world.live}) == 1
        behind = bool(active) and active[0].status is SequenceStatus.WAITING
        others_run = any(not sequence.paused for sequence in self.world.scheduler.running)
        stepped = self.world.step()
        if any(sequence.throttled for sequence in active):
            stepped |= self.world.step()  # all may have rested
        assert bool(active) == bool(stepped), "there is work, so there is progress"
        if alone and active and not active[0].throttled and not (behind and others_run):
            assert active[0] in stepped, "a tenant's oldest never waits for a newer one's step"

    @invariant()
    def books_are_right(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        for sequence in world.live:
            sequence.paused = sequence.throttled = False
        # Alone, one after the other, they would need about this many steps; batching must not cost more.
        bound = sum(sequence.limit + sequence.limit // world.budget + 2 for sequence in world.live)
        for _ in range(bound):
            if not world.live:
                break
            world.step()
        assert not world.live, "every sequence ends"
        assert world.pool.free_blocks == world.pool.total


SchedulerMachine.TestCase.settings = settings(stateful_step_count=60)
TestSchedulerMachine = pytest.mark.slow(SchedulerMachine.TestCase)
