"""Tests of `seedance_server.readiness`."""

import pytest

from seedance_server.readiness import Cause, Readiness, Reason


@pytest.mark.parametrize(
    ("cause", "alive", "is_open"),
    [
        (Cause.LOADING, True, False),
        (Cause.DRAINING, True, False),
        (Cause.ENGINE, False, False),
        (Cause.STALLED, False, False),
        (Cause.JOURNAL, True, False),
        (Cause.ROOM, True, True),
    ],
)
def test_readiness_says_of_each_cause_whether_to_wait_and_whether_to_come(
    cause: Cause, alive: bool, is_open: bool
) -> None:
    """Any of them keeps new work away; only some keep clients out, and only some are the process's end."""
    readiness = Readiness((Reason(cause, "why"),))
    assert not readiness.is_ready
    assert readiness.is_alive is alive
    assert readiness.barred == (None if is_open else "why")


def test_readiness_without_a_reason_is_all_well() -> None:
    """Ready, alive, open; and what was found at start is told."""
    readiness = Readiness(invariance="looked at", kernels="ours")
    assert (readiness.is_ready, readiness.is_alive, readiness.barred) == (True, True, None)
    assert readiness.lines("ok") == "ok\ninvariance: looked at\nkernels: ours\n"


def test_readiness_tells_all_reasons_and_bars_for_the_first_that_does() -> None:
    """The gravest come first; one that bars nobody doesn't hide one that does."""
    readiness = Readiness((Reason(Cause.ROOM, "full"), Reason(Cause.JOURNAL, "broken")))
    assert readiness.barred == "broken"
    assert readiness.lines("no") == "no\nroom: full\njournal: broken\n"
    assert readiness.as_json()["reasons"] == [
        {"cause": "room", "reason": "full"},
        {"cause": "journal", "reason": "broken"},
    ]
