"""Tests of `seedance_server.guesses`."""

from seedance_server.guesses import GuessLimiter


def fail_until_blocked(limiter: GuessLimiter, name: str, now_s: float) -> tuple[int, float]:
    for attempt in range(1, 1000):
        if wait_s := limiter.note_failure(name, now_s):
            return attempt, wait_s
    raise AssertionError


def test_guesser_is_turned_away_after_ten_failures_and_twice_as_long_each_time() -> None:
    """1, 2, 4, 8 minutes, then 15."""
    limiter = GuessLimiter()
    now_s = 100.0
    waits = []
    for _ in range(7):
        attempts, wait_s = fail_until_blocked(limiter, "a", now_s)
        assert attempts == 11
        assert limiter.blocked_s("a", now_s) == wait_s
        waits.append(wait_s)
        now_s += wait_s
        assert limiter.blocked_s("a", now_s) == 0
    assert waits == [60, 120, 240, 480, 900, 900, 900]


def test_guesser_who_goes_on_while_turned_away_makes_it_no_longer() -> None:
    """A client with a stale key that hammers is let in as soon as it has a good one."""
    limiter = GuessLimiter()
    fail_until_blocked(limiter, "a", 0.0)
    for second in range(60):
        assert limiter.note_failure("a", float(second)) == 60 - second
    assert limiter.blocked_s("a", 60.0) == 0


def test_failures_below_the_rate_are_never_held_against_anybody() -> None:
    """One in six seconds, for ever."""
    limiter = GuessLimiter()
    assert not any(limiter.note_failure("a", 6.0 * number) for number in range(10_000))


def test_guessers_are_apart_and_forgiven() -> None:
    """By name; by success; by a quiet quarter of an hour."""
    limiter = GuessLimiter()
    fail_until_blocked(limiter, "a", 0.0)
    assert limiter.blocked_s("b", 0.0) == 0
    assert limiter.note_failure("b", 0.0) == 0
    limiter.note_success("b")
    assert len(limiter) == 1
    assert fail_until_blocked(limiter, "a", 960.0)[1] == 60


def test_memory_for_guessers_is_bounded() -> None:
    """Who fails under ever new names makes old ones forgotten, nothing more."""
    limiter = GuessLimiter()
    for number in range(12_000):
        limiter.note_failure(number, 0.0)
    assert len(limiter) == 10_000
