"""Tests of `seedance_server.start_up`."""

import pytest
from structlog.testing import capture_logs

from seedance_server.start_up import StartUp


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


def test_start_shows_each_stage_once_and_times_it(clock: _Clock) -> None:
    """What took how long is known when it is over; a share said again is no stage of its own."""
    lines: list[str] = []
    start = StartUp(lines.append, clock)
    start.report("importing")
    clock.now_s += 3.0
    for share in (0.0, 0.5, 0.9):
        start.report("reading", share)
        assert start.phase == f"reading: {share:.0%}"
        clock.now_s += 0.5
    with capture_logs() as log:
        start.finish()
    assert lines == ["importing", "reading"]
    assert start.stages == [("importing", 3.0), ("reading", 1.5)]
    assert start.phase == ""
    assert log == [
        {"event": "stage of the start", "log_level": "debug", "stage": "reading", "seconds": 1.5},
        {"event": "started", "log_level": "info", "seconds": 4.5, "after_first_stage_s": 1.5},
    ]


def test_start_shows_that_a_long_stage_moves_but_not_every_step(clock: _Clock) -> None:
    """A line in ten seconds: enough to see that it lives, too little to fill a log."""
    lines: list[str] = []
    start = StartUp(lines.append, clock)
    for step in range(100):
        start.report("reading", step / 100)
        clock.now_s += 0.25
    assert lines == ["reading", "reading: 40%", "reading: 80%"]


def test_start_writes_to_the_terminal_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """One line each, on stderr, that says who speaks."""
    StartUp().report("loading")
    assert capfd.readouterr() == ("", "seedance-server: loading\n")
