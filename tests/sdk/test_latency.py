"""The observatory: endpoints told apart, alerts handed on, readers in other threads."""

from __future__ import annotations

import signal
import threading

import pytest

from seedance_sdk.jitter import JitterPeriod
from seedance_sdk.latency import MAX_ENDPOINTS, OTHERS, LatencyObservatory


def test_endpoints_are_told_apart_and_summed_up() -> None:
    """Each by itself in the order of first use, and all together."""
    observatory = LatencyObservatory()
    for url, ttft_s in (("ws://b", 0.1), ("ws://a", 0.3), ("ws://b", 0.1)):
        observatory.endpoint(url).series(canary=False).first(ttft_s, 1)
    report = observatory.report()
    assert [endpoint.url for endpoint in report.endpoints] == ["ws://b", "ws://a"]
    assert [endpoint.answers.ttft.count for endpoint in report.endpoints] == [2, 1]
    assert (report.answers.ttft.count, report.canary.ttft.count) == (3, 0)
    assert report.answers.ttft.max_ms == pytest.approx(300)


def test_endpoints_are_bounded() -> None:
    """Whoever makes a new URL for each client does not fill the memory."""
    observatory = LatencyObservatory()
    for number in range(MAX_ENDPOINTS + 5):
        observatory.endpoint(f"ws://host-{number}").connected(0.01)
    endpoints = observatory.report().endpoints
    assert len(endpoints) == MAX_ENDPOINTS + 1
    assert endpoints[-1].url == OTHERS
    assert endpoints[-1].handshake.count == 5


def test_jitter_is_told_once_for_each_period() -> None:
    """The hook hears when a path becomes restless; a report says until when it was."""
    told: list[JitterPeriod] = []
    seconds = iter(range(100))
    observatory = LatencyObservatory(on_jitter=told.append, clock=lambda: float(next(seconds)))
    endpoint = observatory.endpoint("ws://a")
    for round_trip_s in (0.01, 0.10, 0.01, 0.10):
        endpoint.round_trip(round_trip_s)
    assert [period.url for period in told] == ["ws://a"]
    endpoint.connected(0.02)
    (period,) = observatory.report().endpoints[0].jitter.periods
    assert period.ended_s is not None


def test_a_hook_that_raises_ends_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; the connection under which it was called goes on."""

    def broken(_: JitterPeriod) -> None:
        raise RuntimeError("a mistake in somebody's counter")

    endpoint = LatencyObservatory(on_jitter=broken).endpoint("ws://a")
    endpoint.round_trip(0.0)
    endpoint.round_trip(1.0)
    assert "on_jitter raised" in caplog.text


def test_reports_can_be_asked_for_while_others_write() -> None:
    """Nothing that was told is lost or counted twice, whoever looks meanwhile."""
    observatory = LatencyObservatory()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            observatory.report()

    def write() -> None:
        series = observatory.endpoint("ws://a").series(canary=False)
        for _ in range(2_000):
            series.next(0.01, 2)

    reader = threading.Thread(target=look)
    writers = [threading.Thread(target=write) for _ in range(2)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    figures = observatory.report().answers
    assert (figures.piece_gap.count, figures.itl.count, figures.tokens) == (4_000, 8_000, 8_000)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no user signals on this system")
def test_a_signal_handler_may_ask_for_a_report() -> None:
    """Also when it comes while its own thread holds the lock."""
    observatory = LatencyObservatory()
    reports = []
    former = signal.signal(signal.SIGUSR1, lambda *_: reports.append(observatory.report()))
    try:
        with observatory._lock:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert len(reports) == 1


def test_repr_says_what_it_is() -> None:
    """For a debugger."""
    assert "of 0 endpoints" in repr(LatencyObservatory())
