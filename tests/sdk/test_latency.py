"""The observatory: endpoints told apart, alerts handed on, readers in other threads."""

from __future__ import annotations

import signal
import threading

import pytest
import trio
import trio.testing

from seedance_sdk import SeedanceClient
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import ConnectFailed, Overloaded
from seedance_sdk.jitter import JitterPeriod
from seedance_sdk.latency import MAX_ENDPOINTS, OTHERS, LatencyObservatory
from seedance_sdk.testing import Answer, Cut, ErrorCode, FlowAction, Refusal, ScriptedServer
from seedance_wire.messages import Flow
from tests.sdk.hand_server import HandServer, begin, final, opened


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


# ---- as a client sees it


async def test_client_observes_ttft_and_gaps_of_its_answers(autojump_clock: trio.testing.MockClock) -> None:
    """From the call to the first token, then from token to token, as they arrive."""
    server = ScriptedServer(Answer("a", "b", "c", delay_s=0.25), Answer("d", delay_s=0.5))
    async with AsyncSeedanceClient(connector=server, clock=trio.current_time) as client:
        await client.complete(prompt="x")
        await client.complete(prompt="x")
        figures = client.latency.report().answers
    assert (figures.finished, figures.tokens) == (2, 4)
    assert (figures.ttft.min_ms, figures.ttft.max_ms) == (250, 500)
    assert (figures.itl.count, figures.itl.min_ms, figures.itl.max_ms) == (2, 250, 250)
    assert (figures.total.max_ms, figures.tpot.count) == (750, 1)


async def test_slow_reader_changes_no_figure(autojump_clock: trio.testing.MockClock) -> None:
    """Times are those of arrival, whenever the application takes a piece."""
    server = ScriptedServer(Answer("a", "b", delay_s=0.25))
    async with AsyncSeedanceClient(connector=server, clock=trio.current_time) as client:
        stream = await client.complete(prompt="x", stream=True)
        async for _ in stream:
            await trio.sleep(10)
        figures = client.latency.report().answers
    assert (figures.itl.max_ms, figures.total.max_ms) == (250, 500)


async def test_outage_of_a_client_is_told_apart(autojump_clock: trio.testing.MockClock) -> None:
    """Nine seconds without a server are an outage and no slow token."""
    server = ScriptedServer(Answer("a", "b", Cut(), "c", "d", delay_s=0.25))
    async with AsyncSeedanceClient(connector=server, clock=trio.current_time, dice=lambda: 0.5) as client:
        stream = await client.complete(prompt="x", stream=True)
        async for chunk in stream:
            if chunk.delta == "b":
                server.stop()
                await trio.sleep(9)
                server.start()
        figures = client.latency.report().answers
    assert (figures.interrupted, figures.outage.count) == (1, 1)
    assert (figures.outage.min_ms or 0) > 9000
    assert figures.itl.max_ms == 250
    assert (figures.finished, figures.tpot.count) == (1, 0)


async def test_pace_of_a_slow_reader_is_told_apart(autojump_clock: trio.testing.MockClock) -> None:
    """What the server held back for its reader was not slow by itself."""
    pause, run = (
        Flow(stream_id=0, action=action, window=32) for action in (FlowAction.PAUSE, FlowAction.RUN)
    )
    server = ScriptedServer(Answer("a", pause, "b", run, "c", "d", delay_s=0.25))
    async with AsyncSeedanceClient(connector=server, clock=trio.current_time) as client:
        await client.complete(prompt="x")
        figures = client.latency.report().answers
    assert (figures.tokens, figures.paced, figures.itl.count) == (4, 2, 1)


async def test_ends_of_requests_are_counted_by_their_kind(autojump_clock: trio.testing.MockClock) -> None:
    """Refusals and failures count, also before there is a stream; what a caller leaves is cancelled."""
    server = ScriptedServer(
        Refusal(ErrorCode.OVERLOADED),
        Answer("a", error=ErrorCode.INTERNAL),
        Answer(endless=True),
        Answer(endless=True),
    )
    async with AsyncSeedanceClient(connector=server) as client:
        with pytest.raises(Overloaded):
            await client.complete(prompt="x")
        with pytest.raises(Exception, match="script"):
            await client.complete(prompt="x")
        async with await client.complete(prompt="x", stream=True):
            pass
        stream = await client.complete(prompt="x", stream=True)
        stream.cancel()
        await stream.collect()
        figures = client.latency.report().answers
        assert (figures.finished, figures.failed, figures.cancelled) == (0, 2, 2)
    server.stop()
    async with AsyncSeedanceClient(connector=server) as client:
        with pytest.raises(ConnectFailed):
            await client.complete(prompt="x")
        assert client.latency.report().answers.failed == 1


async def test_heartbeats_give_round_trips(autojump_clock: trio.testing.MockClock) -> None:
    """Of the endpoint that answered."""
    server = HandServer()
    async with opened(server) as session:
        await begin(session, server)
        await trio.sleep(25)
        (endpoint,) = session._route._endpoints._latency.report().endpoints
        assert endpoint.round_trip.count == 2
        assert endpoint.handshake.count == 1
        assert endpoint.jitter.jitter_ms == 0
        await server.say(final(1, 1, ""))


def test_canary_says_so_and_is_counted_apart() -> None:
    """S37: proxies route by the header, and its figures can be read by themselves."""
    server = ScriptedServer(Answer("a"), Answer("b"))
    observatory = LatencyObservatory()
    for canary in (False, True):
        with SeedanceClient(connector=server, latency=observatory, canary=canary) as client:
            client.complete(prompt="x")
            assert client.latency is observatory
    assert [endpoint.headers.get("X-Canary") for endpoint in server.endpoints] == [None, "true"]
    report = observatory.report()
    assert (report.answers.finished, report.canary.finished) == (1, 1)
