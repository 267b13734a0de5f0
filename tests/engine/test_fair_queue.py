from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from seedance_server.engine.fair_queue import CLASS_RATIO, FairQueue, Flow
from tests.engine_strategies import flow_costs, flow_picks, flow_weights

GOLD, SILVER, BRONZE = Flow(0, "gold"), Flow(0, "silver"), Flow(0, "bronze")
WEIGHTS = {GOLD: 3.0, SILVER: 2.0, BRONZE: 1.0}


def give(queue, wanted, capacity):
    """One round of single units: who got how many."""
    round_ = queue.begin({flow: [flow] * count for flow, count in wanted.items()})
    given = Counter()
    while given.total() < capacity and (flow := next(round_, None)) is not None:
        round_.charge(flow, 1)
        given[flow] += 1
    round_.end()
    return given


@pytest.mark.parametrize("capacity", [1, 2, 5, 6, 64])
def test_queue_gives_shares_as_weights_when_all_always_want_more(capacity):
    """Weights 3, 2 and 1 give a half, a third and a sixth, however much there is per round."""
    queue = FairQueue(WEIGHTS)
    given = Counter()
    for _ in range(120):
        given += give(queue, dict.fromkeys((BRONZE, SILVER, GOLD), 100), capacity)
    for flow, weight in WEIGHTS.items():
        assert given[flow] == pytest.approx(120 * capacity * weight / 6, abs=2)


def test_queue_gives_what_one_does_not_want_to_the_others():
    """Nothing is kept back for an absent tenant, and one of small demand gets all of it."""
    queue = FairQueue(WEIGHTS)
    for _ in range(50):
        assert give(queue, {BRONZE: 100}, 10) == {BRONZE: 10}
    for _ in range(50):
        assert give(queue, {BRONZE: 100, GOLD: 1}, 10) == {BRONZE: 9, GOLD: 1}


def test_queue_neither_punishes_nor_rewards_history():
    """After a long time alone, one shares with a newcomer at once; the newcomer brings no savings along."""
    queue = FairQueue(WEIGHTS)
    for _ in range(100):
        give(queue, {BRONZE: 100, GOLD: 1}, 12)
    assert give(queue, {BRONZE: 100, GOLD: 100, SILVER: 100}, 12) == {BRONZE: 2, GOLD: 6, SILVER: 4}


def test_queue_charges_what_was_really_taken():
    """Who takes a lot at once waits until the others have had their share of it."""
    queue = FairQueue({})
    order = []
    for _ in range(20):
        round_ = queue.begin({GOLD: ["chunk"], BRONZE: ["token"] * 8})
        order.append(next(round_))
        flow, amount = (GOLD, 8) if order[-1] == "chunk" else (BRONZE, 1)
        round_.charge(flow, amount)
        round_.end()
    assert order == (["chunk"] + ["token"] * 8) * 2 + ["chunk", "token"]


def test_queue_gives_the_rest_of_an_item_before_the_next():
    """Within a flow it is first come, first served, also for one that was served in part."""
    round_ = FairQueue({}).begin({GOLD: "xyz"})
    assert next(round_) == "x"
    round_.charge(GOLD, 1, rest="rest of x")
    assert list(round_) == ["rest of x", "y", "z"]


def test_queue_leaves_a_lower_class_a_trickle():
    """A class goes first, and nobody starves behind it."""
    queue = FairQueue({})
    urgent, patient = Flow(1, "a"), Flow(0, "b")
    given = give(queue, {patient: 1000, urgent: 1000}, 17 * 10)
    assert given == {urgent: 16 * 10, patient: 10}


class FairQueueMachine(RuleBasedStateMachine):
    """Any history of arrivals and rounds follows the rule of the least lead and keeps the bound on waits."""

    @initialize(weights=flow_weights)
    def start(self, weights):
        flows = [Flow(priority, tenant) for priority in (-1, 0, 1) for tenant in "abcd"]
        self.weights = {flow: weights[flow.tenant] for flow in flows}
        self.queue = FairQueue(self.weights)
        self.leads, self.class_leads = Counter(), Counter()
        self.backlog: dict[Flow, list[int]] = {}
        self.largest = 1
        self.others: dict[Flow, Counter[Flow]] = {}  # what the others have had since the flow waits

    @rule(flow=flow_picks, costs=flow_costs)
    def arrive(self, flow, costs):
        flow = Flow(*flow)
        self.backlog.setdefault(flow, []).extend(costs)
        if flow not in self.others:
            self.others[flow] = Counter()

    @rule(flow=flow_picks)
    def leave(self, flow):
        self.backlog.pop(Flow(*flow), None)
        self.others.pop(Flow(*flow), None)

    @rule(capacity=st.integers(1, 30), backwards=st.booleans())
    def give(self, capacity, backwards):
        flows = sorted(self.backlog, reverse=backwards)
        waiting = {flow: list(self.backlog[flow]) for flow in flows}
        for flow in flows:
            for other in flows:
                self.others[other][flow] += 0  # it wants something meanwhile
        round_ = self.queue.begin({flow: [(flow, cost) for cost in waiting[flow]] for flow in flows})
        while capacity:
            expected = self.least(waiting, flows)
            item = next(round_, None)
            assert (item and item[0]) == expected
            if item is None:
                break
            flow, cost = item
            assert cost == waiting[flow][0], "first come, first served"
            taken = min(cost, capacity)
            capacity -= taken
            self.take(flow, taken, waiting)
            round_.charge(flow, taken, rest=(flow, cost - taken) if taken < cost else None)
            if taken < cost:
                waiting[flow][0] -= taken
            else:
                del waiting[flow][0]
        round_.end()
        self.settle(waiting)
        self.backlog = {flow: costs for flow, costs in waiting.items() if costs}
        self.others = {flow: self.others[flow] for flow in self.backlog}

    def least(self, waiting, flows):
        """By a scan over all: the flow of least lead in the class of least lead."""
        candidates = [flow for flow in flows if waiting[flow]]
        return min(
            candidates,
            key=lambda f: (self.class_leads[f.priority], -f.priority, self.leads[f], flows.index(f)),
            default=None,
        )

    def take(self, flow, taken, waiting):
        self.largest = max(self.largest, taken)
        also = [other for other in waiting if waiting[other] and other != flow]
        if any(other.priority == flow.priority for other in also):
            self.leads[flow] += Fraction(taken) / Fraction(self.weights[flow])
        if any(other.priority != flow.priority for other in also):
            self.class_leads[flow.priority] += Fraction(taken) / Fraction(CLASS_RATIO) ** flow.priority
        for other in also:
            self.others[other][flow] += taken
            self.check_bound(other)
        self.others[flow] = Counter()

    def settle(self, waiting):
        behind = [flow for flow in waiting if waiting[flow]]
        leads, class_leads = self.leads.copy(), self.class_leads.copy()
        for flow in leads:
            peers = [leads[other] for other in behind if other.priority == flow.priority]
            self.leads[flow] = max(Fraction(0), leads[flow] - min(peers, default=leads[flow]))
        least = min(
            (class_leads[flow.priority] for flow in behind), default=max(class_leads.values(), default=0)
        )
        for priority in class_leads:
            self.class_leads[priority] = max(Fraction(0), class_leads[priority] - least)

    def check_bound(self, flow):
        """The formula of the module's docstring."""
        taken, most = self.others[flow], self.largest
        peers = {other for other in taken if other.priority == flow.priority} | {flow}
        weight = Fraction(self.weights[flow])
        together = sum(Fraction(self.weights[peer]) for peer in peers)
        in_class = most * ((together - weight) / weight + len(peers) - 1)
        assert sum(taken[peer] for peer in peers) <= in_class
        classes = {other.priority for other in taken} | {flow.priority}
        own = Fraction(CLASS_RATIO) ** flow.priority
        all_classes = sum(Fraction(CLASS_RATIO) ** priority for priority in classes)
        outside = (all_classes - own) * (most + in_class) / own + (len(classes) - 1) * most
        assert sum(count for other, count in taken.items() if other.priority != flow.priority) <= outside


FairQueueMachine.TestCase.settings = settings(stateful_step_count=40)
TestFairQueueMachine = pytest.mark.slow(FairQueueMachine.TestCase)
