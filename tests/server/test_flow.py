"""Tests of `seedance_server.flow`."""

from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seedance_server.flow import FlowSignal
from seedance_wire.messages import FlowAction
from seedance_wire.window import SlidingWindow

RUN, THROTTLE, PAUSE = FlowAction.RUN, FlowAction.THROTTLE, FlowAction.PAUSE


@pytest.mark.parametrize(
    ("uses", "words"),
    [
        ([0, 23, 24, 31, 32], [None, None, THROTTLE, None, PAUSE]),
        ([32, 31, 24, 17, 16], [PAUSE, None, None, None, RUN]),
        ([24, 17, 16, 23, 24], [THROTTLE, None, RUN, None, THROTTLE]),
        ([40, 40, 0, 0], [PAUSE, None, RUN, None]),
        ([24, 31, 24, 31], [THROTTLE, None, None, None]),
    ],
)
def test_flow_signal_speaks_at_its_marks_and_only_once(uses: list[int], words: list[FlowAction | None]):
    """THROTTLE from three quarters, PAUSE when full, RUN from a half down; between them the word stands."""
    signal = FlowSignal()
    assert [signal.update(used, 32) for used in uses] == words


class SignalMachine(RuleBasedStateMachine):
    """A window in use, its signal, and whoever follows it by the edges alone."""

    def __init__(self):
        super().__init__()
        self.window, self.signal = SlidingWindow(), FlowSignal()
        self.followed = [RUN]
        self.sent = self.acked = 0
        self.now_s = 0.0

    def tell(self):
        before = self.followed[-1]
        word = self.signal.update(self.window.in_flight, self.window.size)
        if word is not None:
            self.followed.append(word)
        share = Fraction(self.window.in_flight, self.window.size)
        if share >= 1:
            expected = PAUSE
        elif share <= Fraction(1, 2):
            expected = RUN
        elif before is RUN and share >= Fraction(3, 4):
            expected = THROTTLE
        else:
            expected = before
        assert self.followed[-1] is expected

    @precondition(lambda self: self.window.can_send(1))
    @rule(count=st.integers(1, 40))
    def send(self, count: int):
        for _ in range(count):
            if self.window.can_send(1):
                self.sent += 1
                self.window.on_sent(self.sent, 1, self.now_s)
                self.tell()

    @precondition(lambda self: self.sent > self.acked)
    @rule(share=st.floats(0, 1), latency_s=st.sampled_from([0.01, 0.1, 0.3]))
    def acknowledge(self, share: float, latency_s: float):
        self.now_s += latency_s
        self.acked += 1 + int(share * (self.sent - self.acked - 1))
        self.window.on_ack(self.acked, self.now_s)
        self.tell()

    @rule()
    def say_it_again(self):
        self.tell()

    @invariant()
    def only_edges_are_told(self):
        assert all(one is not next_ for one, next_ in zip(self.followed, self.followed[1:], strict=False))
        assert self.followed[-1] is self.signal.action

    @invariant()
    def a_full_window_never_runs(self):
        assert self.window.in_flight < self.window.size or self.followed[-1] is PAUSE

    def teardown(self):
        """No lost wake-up: once all is acknowledged, whatever happened before, it runs."""
        if self.sent > self.acked:
            self.window.on_ack(self.sent, self.now_s + 9)
            self.tell()
        assert self.followed[-1] is RUN


TestSignalMachine = SignalMachine.TestCase
