"""Tests of `seedance_server.tracing`, against a collector that decodes what comes."""

import socket
import sys

import pytest
import trio

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.request_watch import Outcome, RequestWatch, Stage
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import ErrorCode
from tests.server.http.probe import Client
from tests.server.metrics.scraping import scrape, value
from tests.server.wire_client import wire_client

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'seedance-server[otel]'")

from seedance_server.tracing import Traces, open_traces, otlp_exporter
from tests.server.otlp_receiver import receiving, values

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def close(traces: Traces) -> None:
    """Not as the server does it: its clock would jump while a thread works."""
    traces._provider.shutdown()
    assert traces.statistics().exported == traces.statistics().made


async def test_traces_show_a_request_with_its_stages_in_its_clients_trace(autojump_clock) -> None:
    """One span, a child of the client's; the stages in order as events, the figures as attributes."""
    with receiving() as receiver:
        traces = open_traces(receiver.url)
        async with serve_in_memory(traces=traces) as server:
            async with wire_client(server.connect(), headers=[(b"X-Canary", b"true")]) as client:
                await client.submit(traceparent=f"00-{TRACE}-{PARENT}-01")
                await client.until_end()
            await trio.sleep(1)
        close(traces)
    [span] = receiver.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert [event.name for event in span.events] == [stage.value for stage in Stage]
    times = [span.start_time_unix_nano, *(event.time_unix_nano for event in span.events)]
    assert sorted([*times, span.end_time_unix_nano]) == [*times, span.end_time_unix_nano]
    attributes = values(span)
    assert attributes["seedance.outcome"] == "stop"
    assert attributes["seedance.canary"] is True
    assert (attributes["seedance.tenant"], attributes["seedance.stream"]) == ("local", 1)
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (2, 4)
    stages = ("queue", "preprocess", "prefill", "first_decode", "cache_sync", "egress")
    summed_ms = sum(attributes[f"seedance.{stage}_ms"] for stage in stages)
    assert summed_ms == pytest.approx(attributes["seedance.ttft_ms"], abs=1)
    assert receiver.resources[0]["service.name"] == "seedance-server"
    assert not any("Hi" in str(each) or "Hello" in str(each) for each in attributes.values())


async def test_traces_take_the_context_from_http_headers_too(autojump_clock) -> None:
    """A client of the HTTP API, or a proxy before it, has its trace gone on with."""
    with receiving() as receiver:
        traces = open_traces(receiver.url)
        async with serve_in_memory(traces=traces) as server:
            asked = {"model": "scripted", "prompt": "Hi"}
            await Client(server.connect()).ask(
                "POST", "/v1/completions", asked, traceparent=f"00-{TRACE}-{PARENT}-01", X_Canary="true"
            )
            await trio.sleep(1)
        close(traces)
    [span] = receiver.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert values(span)["seedance.canary"] is True


async def test_traces_show_refusals_failures_and_parked_streams(autojump_clock) -> None:
    """Whatever became of a request has its span, and a fault is marked as one."""
    with receiving() as receiver:
        traces = open_traces(receiver.url)
        config = Config(model_path="m", orphan_grace_s=0.1)
        async with serve_in_memory(ScriptedEngine(["x"] * 9999), traces=traces, config=config) as server:
            async with wire_client(server.connect()) as client:
                await client.submit(model="another")
                await client.refused()
                await client.submit(deadline_ms=300)
                await client.until_end()
                await client.submit()
                await client.accepted()
            await trio.sleep(1)
        close(traces)
    seen = {values(span)["seedance.outcome"]: span for span in receiver.spans}
    assert seen.keys() == {"refused", "error", "parked"}
    assert values(seen["refused"])["error.type"] == "model_not_found"
    assert seen["error"].status.message == "deadline_exceeded"
    assert seen["parked"].status.code == 0
    assert not seen["parked"].parent_span_id


def watch() -> RequestWatch:
    one = RequestWatch((), lambda: 5.0, tenant="t", session="s")
    one.end(Outcome.ERROR, ErrorCode.INTERNAL)
    return one


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["nobody listens", "it says no", "the queue is full"])
async def test_traces_of_a_collector_that_is_gone_cost_nothing(fault: str) -> None:
    """Making a span never waits; the end of the server waits for two seconds; what was lost is counted."""
    with receiving() as receiver, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        receiver.status = 400
        url = f"http://127.0.0.1:{unused.getsockname()[1]}" if fault == "nobody listens" else receiver.url
        traces = Traces(otlp_exporter(url), export_every_s=0.01)
        count = 5000 if fault == "the queue is full" else 20
        for _ in range(count):
            traces.ended(watch())
        began_s = trio.current_time()
        await traces.close()
        assert trio.current_time() - began_s < 5
        figures = traces.statistics()
        assert (figures.made, figures.exported) == (count, 0)
        if fault == "it says no":
            assert figures.failed == count


async def test_traces_are_counted_among_the_metrics(autojump_clock) -> None:
    """Spans that the collector doesn't take are seen where everything else is."""
    with receiving() as receiver:
        traces = open_traces(receiver.url)
        async with serve_in_memory(traces=traces) as server:
            traces.ended(watch())
            close(traces)
            read = scrape(server)
            assert value(read, "trace_spans_total", state="made") == 1
            assert value(read, "trace_spans_total", state="exported") == 1


def test_traces_need_their_packages_only_where_they_are_asked_for(monkeypatch) -> None:
    """A server without the extra starts without the flag, and says what is missing with it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert open_traces(None) is None
    with pytest.raises(ConfigError, match=r"pip install 'seedance-server\[otel\]'"):
        open_traces("http://127.0.0.1:4318")
