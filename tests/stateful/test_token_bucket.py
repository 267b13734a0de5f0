"""The token bucket against a naive model that keeps every event and adds it all up again each time."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seedance_wire.token_bucket import TokenBucket

AMOUNTS = st.integers(0, 200)
RATES = st.integers(1, 50)
BURSTS = st.integers(1, 100)
SLACK = 1e-5
"""What the bucket may be off by, in tokens: its own allowance for rounding, and that of its sums."""


class TokenBucketMachine(RuleBasedStateMachine):
    """The model works in fractions, so what differs is the bucket's rounding or its mistake."""

    @initialize(rate=RATES, burst=BURSTS)
    def begin(self, rate: int, burst: int) -> None:
        self.now = Fraction(1000)
        self.bucket = TokenBucket(rate, burst, float(self.now))
        self.log: list[tuple[str, Fraction, int, int]] = [("change", self.now, rate, burst)]
        self.spent = Fraction(0)

    def saved(self) -> Fraction:
        """Everything that ever happened, added up again."""
        saved, at, rate, burst = None, self.now, 0, 0
        for kind, when, first, second in [*self.log, ("now", self.now, 0, 0)]:
            if saved is not None:
                saved = min(Fraction(burst), saved + (when - at) * rate)
            at = when
            if kind == "change":
                rate, burst = first, second
                saved = Fraction(burst) if saved is None else min(Fraction(burst), saved)
            elif kind == "take":
                assert saved is not None
                saved = min(Fraction(burst), saved - first)
        assert saved is not None
        self.rate, self.burst = rate, burst
        return saved

    @rule(milliseconds=st.integers(0, 5_000))
    def wait(self, milliseconds: int) -> None:
        self.now += Fraction(milliseconds, 1000)

    @rule(amount=AMOUNTS)
    def take(self, amount: int) -> None:
        missing = min(amount, self.saved_burst()) - self.saved()
        taken = self.bucket.take(float(self.now), amount)
        if abs(missing) > SLACK:
            assert taken is (missing <= 0)
        if taken:
            self.log.append(("take", self.now, amount, 0))

    def saved_burst(self) -> int:
        self.saved()
        return self.burst

    @rule(amount=AMOUNTS)
    def take_after_the_wait(self, amount: int) -> None:
        """Who waits as long as it says finds what it wants, and no shorter time would have done."""
        wait_s = self.bucket.wait_s(float(self.now), amount)
        missing = max(Fraction(0), min(amount, self.saved_burst()) - self.saved())
        assert math.isclose(wait_s, float(missing / self.rate), abs_tol=SLACK)
        self.now += Fraction(wait_s)
        assert self.bucket.take(float(self.now), amount)
        self.log.append(("take", self.now, amount, 0))

    @rule(amount=st.integers(-200, 200), milliseconds=st.integers(0, 5_000))
    def charge(self, amount: int, milliseconds: int) -> None:
        self.now += Fraction(milliseconds, 1000)
        self.bucket.charge(float(self.now), amount)
        self.log.append(("take", self.now, amount, 0))

    @rule(rate=RATES, burst=BURSTS, milliseconds=st.integers(0, 5_000))
    def change(self, rate: int, burst: int, milliseconds: int) -> None:
        self.now += Fraction(milliseconds, 1000)
        self.bucket.change(float(self.now), rate, burst)
        self.log.append(("change", self.now, rate, burst))

    @invariant()
    def debt_is_what_the_model_says(self) -> None:
        if hasattr(self, "bucket"):
            owed = max(Fraction(0), -self.saved())
            wait_s = self.bucket.wait_s(float(self.now), 0)
            assert math.isclose(wait_s, float(owed / self.rate), abs_tol=SLACK, rel_tol=1e-9)


TestTokenBucket = TokenBucketMachine.TestCase
