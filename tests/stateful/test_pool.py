"""The pool equals a naive model: requests that come and go, connections that break, and time."""

from __future__ import annotations

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from seedance_sdk.pool import Pool

MAX_CONNECTIONS = 3
IDLE_S = 30


@define(eq=False)
class Connection:
    """A session, and when it last carried something: the model's diary."""

    capacity: int
    load: int = 0
    connected: bool = True
    accepts_requests: bool = True
    idle_at: float | None = field(default=None)


class PoolMachine(RuleBasedStateMachine):
    """What a client does with its pool, and what a child with a list would do."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.pool: Pool[Connection] = Pool(MAX_CONNECTIONS, IDLE_S)
        self.sessions: list[Connection] = []
        self.opened = self.closed_idle = 0

    # ---- the model

    @property
    def carrying(self) -> list[Connection]:
        return [each for each in self.sessions if each.connected or each.load]

    def changed(self) -> None:
        for each in self.sessions:
            if not each.connected or each.load:
                each.idle_at = None
            elif each.idle_at is None:
                each.idle_at = self.now_s
        self.pool.note(self.now_s)

    def expected(self) -> Connection | None:
        """By sorting, where the pool counts."""
        full = len(self.carrying) >= MAX_CONNECTIONS
        ready = [each for each in (self.carrying if full else self.sessions) if each.accepts_requests]
        roomy = sorted((s for s in ready if s.load < s.capacity), key=lambda s: (-s.load, not s.connected))
        if roomy:
            return roomy[0]
        shortest = sorted(ready, key=lambda each: each.load / each.capacity)
        return shortest[0] if full and shortest else None

    # ---- what happens

    @initialize(connected=st.tuples(st.booleans(), st.booleans()))
    def earlier_requests_have_ended(self, connected: tuple[bool, bool]) -> None:
        """Two sessions are left of them, with a connection or without."""
        for each in connected:
            self.sessions.append(Connection(2, connected=each))
            self.pool.add(self.sessions[-1])
            self.opened += 1
        self.changed()

    @rule(target=requests, capacity=st.sampled_from([1, 1, 2, 3]))
    def request(self, capacity: int) -> object:
        """A request comes: it is carried by the one that the model says, by a new one, or it waits."""
        expected = self.expected()
        chosen = self.pool.choose()
        assert chosen is expected
        assert self.pool.may_open == (len(self.carrying) < MAX_CONNECTIONS)
        if chosen is None:
            if not self.pool.may_open:
                return multiple()
            chosen = Connection(capacity)
            self.sessions.append(chosen)
            self.pool.add(chosen)
            self.opened += 1
        chosen.load += 1
        chosen.connected = True
        self.changed()
        return chosen

    @rule(connection=consumes(requests))
    def request_ends(self, connection: Connection) -> None:
        """Whatever carried it carries one less."""
        connection.load -= 1
        self.changed()

    @rule(data=st.data())
    def connection_breaks(self, data: st.DataObject) -> None:
        """Or is closed in order; its streams wait for the next one."""
        if self.sessions:
            data.draw(st.sampled_from(self.sessions)).connected = False
            self.changed()

    @rule(data=st.data())
    def connection_is_made_again(self, data: st.DataObject) -> None:
        """Only where somebody needs it."""
        waiting = [each for each in self.sessions if each.load and not each.connected]
        if waiting:
            data.draw(st.sampled_from(waiting)).connected = True
            self.changed()

    @rule(data=st.data(), accepts=st.booleans())
    def server_leaves_or_is_back(self, data: st.DataObject, accepts: bool) -> None:
        """New requests go elsewhere meanwhile."""
        if self.sessions:
            data.draw(st.sampled_from(self.sessions)).accepts_requests = accepts

    @rule(data=st.data())
    def session_ends(self, data: st.DataObject) -> None:
        """One without requests is forgotten."""
        empty = [each for each in self.sessions if not each.load]
        if empty:
            gone = data.draw(st.sampled_from(empty))
            self.sessions.remove(gone)
            self.pool.remove(gone)

    @rule(seconds=st.sampled_from([0.5, 10, 29.5, 30, 100]))
    def time_passes(self, seconds: float) -> None:
        """Idle connections are closed in their time, neither before nor twice."""
        due_at = min(
            (s.idle_at + IDLE_S for s in self.sessions if s.idle_at is not None), default=float("inf")
        )
        assert self.pool.next_due_s == due_at
        self.now_s += seconds
        expected = {s for s in self.sessions if s.idle_at is not None and s.idle_at + IDLE_S <= self.now_s}
        due = self.pool.due(self.now_s)
        assert set(due) == expected
        assert len(due) == len(expected)
        self.closed_idle += len(due)
        for each in due:
            each.connected = False
        self.changed()

    @rule(seconds=st.sampled_from([0, 5, 20]))
    def something_else_changes(self, seconds: float) -> None:
        """Which makes nobody's idleness begin anew."""
        self.now_s += seconds
        self.changed()

    @rule()
    def somebody_cannot_wait(self) -> None:
        """The one that was idle for longest makes room."""
        idle = sorted((s for s in self.sessions if s.idle_at is not None), key=lambda s: s.idle_at or 0.0)
        spare = self.pool.spare()
        if spare is None:
            assert not idle
            return
        assert spare.idle_at == idle[0].idle_at
        self.closed_idle += 1
        spare.connected = False
        self.changed()

    # ---- what holds always

    @invariant()
    def there_are_never_too_many(self) -> None:
        """However they came about."""
        assert len(self.carrying) <= MAX_CONNECTIONS

    @invariant()
    def statistics_are_the_model_s(self) -> None:
        """Each number, at every moment."""
        figures = self.pool.statistics()
        assert figures.connections == len(self.carrying)
        assert figures.idle == sum(each.connected and not each.load for each in self.sessions)
        assert figures.sessions == len(self.sessions) == len(self.pool)
        assert figures.load == sum(each.load for each in self.sessions)
        assert (figures.opened, figures.closed_idle) == (self.opened, self.closed_idle)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=60)
