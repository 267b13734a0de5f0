"""Tests of `seedance_server.shutdown`."""

import signal
import threading

import pytest
import trio

from seedance_server.shutdown import ENGINE_FAILED_STATUS, Shutdown


def shutdown(timeout_s: float = 30.0, **more) -> tuple[Shutdown, list[int]]:
    left: list[int] = []
    return Shutdown(timeout_s, 2.0, end_process=left.append, **more), left


@pytest.mark.parametrize(("after_s", "exits"), [(0.5, []), (1.5, [128 + signal.SIGTERM])])
async def test_a_second_signal_insists_unless_it_is_an_echo(autojump_clock, after_s, exits) -> None:
    """Wrappers signal a process and its group; only a later signal means it."""
    subject, left = shutdown()
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.watch_signals)
        signal.raise_signal(signal.SIGINT)
        await trio.sleep(after_s)
        assert subject.requested.is_set()
        assert subject.loading.cancel_called
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    subject.close()
    assert left == exits


@pytest.mark.parametrize(
    ("timeout_s", "streams_s", "draining_s"),
    [(30.0, 23.0, 27.0), (10.0, 5.0, 7.0), (1.0, 1.0, 1.0), (0.1, 0.1, 1.0), (0.0, 0.0, 1.0)],
)
async def test_times_leave_room_for_what_follows(autojump_clock, timeout_s, streams_s, draining_s) -> None:
    """Streams get most of it, connections are cut before the end, and closing always has two seconds."""
    subject, _ = shutdown(timeout_s)
    assert subject.streams_s == pytest.approx(streams_s)
    await trio.sleep(100)  # nothing runs before it is asked for
    subject.request()
    assert subject.draining_s == pytest.approx(draining_s)
    assert subject.remaining_s == pytest.approx(max(timeout_s, 2.0))
    await trio.sleep(1)
    subject.request()  # asking again gains no time
    assert subject.remaining_s == pytest.approx(max(timeout_s, 2.0) - 1)
    await trio.sleep(60)
    assert (subject.remaining_s, subject.draining_s) == (0, 0)


async def test_at_the_deadline_the_process_ends_with_0_whatever_hangs(monkeypatch, capsys) -> None:
    """Its own thread sees to that: the event loop may be what hangs."""
    timers = []

    class Timer(threading.Timer):
        def __init__(self, interval: float, function) -> None:
            super().__init__(interval, function)
            timers.append((interval, function))

        def start(self) -> None:
            """It never runs out by itself here."""

    monkeypatch.setattr(threading, "Timer", Timer)
    subject, left = shutdown(5.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.watch_signals)
        signal.raise_signal(signal.SIGTERM)
        await subject.requested.wait()
        nursery.cancel_scope.cancel()
    ((interval, run_out),) = timers
    assert interval == 5.0
    run_out()
    assert left == [0]
    assert capsys.readouterr().err.endswith("not all was closed in time; what was sent is in the journal\n")


async def test_engine_that_failed_ends_the_process_with_3(monkeypatch, capsys) -> None:
    """Streams get no time, since none can go on; what hangs with the device is left behind in time."""
    timers = []

    class Timer(threading.Timer):
        def __init__(self, interval: float, function) -> None:
            super().__init__(interval, function)
            timers.append(function)

        def start(self) -> None:
            """It never runs out by itself here."""

    monkeypatch.setattr(threading, "Timer", Timer)
    own, _ = shutdown(5.0)
    own.fail()
    assert own.has_failed
    assert not timers, "the process of somebody who asked for no signals isn't ours to end"
    subject, left = shutdown(5.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.watch_signals)
        with subject.draining:
            subject.fail()
            await trio.sleep_forever()
        assert subject.requested.is_set()
        nursery.cancel_scope.cancel()
    (run_out,) = timers
    run_out()
    assert left == [ENGINE_FAILED_STATUS]


async def test_once_all_is_closed_nothing_ends_the_process() -> None:
    """Somebody who runs the server in a process of their own keeps it."""
    subject, left = shutdown(0.0)
    subject.close()
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.watch_signals)
        signal.raise_signal(signal.SIGTERM)
        await subject.requested.wait()
        nursery.cancel_scope.cancel()
    subject.close()
    assert not any(
        isinstance(thread, threading.Timer) and not thread.finished.is_set()
        for thread in threading.enumerate()
    )
    assert left == []
