"""The line for the engine against a world in which requests come, give up, rest and end in any order."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedance_server.admission_queue import AdmissionQueue, Ticket

WEIGHTS = {"gold": 3.0, "silver": 2.0, "bronze": 1.0}


class AdmissionQueueMachine(RuleBasedStateMachine):
    """Holds: the bounds, the order within a tenant, and that everybody's turn comes, with no place lost."""

    @initialize(sequences=st.integers(1, 4), blocks=st.integers(3, 8), ahead=st.integers(0, 2))
    def begin(self, sequences: int, blocks: int, ahead: int) -> None:
        self.sequences, self.blocks, self.ahead = sequences, blocks, ahead
        self.queue = AdmissionQueue(sequences=sequences, blocks=blocks, ahead=ahead)
        self.now_s = 0.0
        self.order: dict[str, list[Ticket]] = {tenant: [] for tenant in WEIGHTS}  # who waits, as it came
        self.granted: list[Ticket] = []
        self.resting: set[Ticket] = set()

    def _tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def _note_turns(self) -> None:
        for line in self.order.values():
            while line and line[0].is_granted:
                self.granted.append(line.pop(0))

    @rule(tenant=st.sampled_from(sorted(WEIGHTS)), blocks=st.integers(1, 9), is_returning=st.booleans())
    def join(self, tenant: str, blocks: int, is_returning: bool) -> None:
        ticket = Ticket(tenant, WEIGHTS[tenant], blocks, self.now_s, is_returning)
        ticket.is_resting = lambda: ticket in self.resting
        self.order[tenant].insert(0 if is_returning else len(self.order[tenant]), ticket)
        self.queue.join(ticket, self._tick())
        self._note_turns()

    @precondition(lambda self: any(self.order.values()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        waiting = [ticket for line in self.order.values() for ticket in line]
        ticket = data.draw(st.sampled_from(waiting))
        self.order[ticket.tenant].remove(ticket)
        self.queue.leave(ticket, self._tick())
        self._note_turns()

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), what=st.sampled_from(["start", "end", "rest", "go on"]))
    def run(self, data: st.DataObject, what: str) -> None:
        ticket = data.draw(st.sampled_from(self.granted))
        if what == "start":
            self.queue.note_started(ticket, self._tick())
        elif what == "end":
            self.granted.remove(ticket)
            self.resting.discard(ticket)
            self.queue.leave(ticket, self._tick())
        else:
            (self.resting.add if what == "rest" else self.resting.discard)(ticket)
            self.queue.advance(self._tick())
        self._note_turns()

    @invariant()
    def turns_are_given_in_order_and_to_those_alone(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert not any(ticket.is_granted for line in self.order.values() for ticket in line)
        assert set(self.queue.waiting()) == {ticket for line in self.order.values() for ticket in line}
        for tenant, line in self.order.items():
            assert [ticket for ticket in self.queue.waiting() if ticket.tenant == tenant] == line
            assert [self.queue.position(ticket) for ticket in line] == sorted(
                self.queue.position(ticket) for ticket in line
            )
        statistics = self.queue.statistics()
        assert (statistics.granted, statistics.waiting) == (len(self.granted), len(self.queue.waiting()))

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        if not hasattr(self, "queue") or not self.queue.waiting():
            return
        active = [ticket for ticket in self.granted if ticket not in self.resting]
        assert active, "nothing runs, and somebody waits"
        ahead = Counter(ticket.tenant for ticket in self.granted if not ticket.has_started)
        for tenant, line in self.order.items():
            assert not line or ahead[tenant] >= self.ahead
        heads = [line[0] for line in self.order.values() if line]
        used = sum(ticket.blocks for ticket in active)
        fits = [len(active) < self.sequences and used + head.blocks <= self.blocks for head in heads]
        assert not all(fits), "everybody would fit, and nobody goes"

    @rule()
    def drain(self) -> None:
        """If no more come and those that run end, everybody has its turn within as many ends as there are."""
        if not hasattr(self, "queue"):
            return
        self.resting.clear()
        left = len(self.queue.waiting()) + len(self.granted)
        while self.granted:
            assert left > 0
            left -= 1
            self.queue.leave(self.granted.pop(0), self._tick())
            self._note_turns()
        assert not self.queue.waiting()
        assert self.queue.statistics().blocks == 0


TestAdmissionQueue = AdmissionQueueMachine.TestCase
