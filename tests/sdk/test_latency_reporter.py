"""A client that reports its own latency, and one that does not."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from seedance_sdk import SeedanceClient
from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import ReportsFull
from seedance_sdk.latency import MAX_ENDPOINTS, LatencyObservatory
from seedance_sdk.latency_reporter import LATENCY_ACTION, MAX_PAYLOAD_BYTES, LatencyReporter
from seedance_sdk.testing import Answer, ScriptedServer


async def test_client_reports_its_latency_only_where_that_is_wanted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nothing of a program's figures leaves it unasked."""
    server = ScriptedServer(Answer("a"), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        await client.complete(prompt="x")
        await trio.sleep(600)
    assert server.reports == []
    async with AsyncSeedanceClient(connector=server, report_latency_s=60) as client:
        await client.complete(prompt="x")
    (report,) = server.reports  # at the end
    assert report.action == LATENCY_ACTION
    assert json.loads(report.payload)["answers"]["finished"] == 1


async def test_client_reports_news_at_intervals_and_nothing_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A client at rest says nothing."""
    server = ScriptedServer(Answer("a"), Answer("b"))
    async with AsyncSeedanceClient(connector=server, report_latency_s=60) as client:
        await client.complete(prompt="x")
        await trio.sleep(61)
        assert len(server.reports) == 1
        await trio.sleep(600)
        assert len(server.reports) == 1
        await client.complete(prompt="x")
        await trio.sleep(61)
        assert [json.loads(each.payload)["answers"]["finished"] for each in server.reports] == [1, 2]
    assert len(server.reports) == 2


def test_blocking_client_reports_too() -> None:
    """The faces are one."""
    server = ScriptedServer(Answer("a"))
    with SeedanceClient(connector=server, report_latency_s=60) as client:
        client.complete(prompt="x")
    assert [report.action for report in server.reports] == [LATENCY_ACTION]


def test_what_could_not_be_reported_is_news_again() -> None:
    """A full buffer costs a report, not the figures: each tells all so far."""
    taken: list[str] = []
    full = [True]

    def report(action: str, payload: str) -> None:
        if full[0]:
            raise ReportsFull("full")
        taken.append(payload)

    observatory = LatencyObservatory()
    reporter = LatencyReporter(observatory, report, 60)
    reporter.report_news()
    observatory.endpoint("ws://a").series(canary=True).first(0.1, 1)
    reporter.report_news()
    full[0] = False
    reporter.report_news()
    reporter.report_news()
    assert len(taken) == 1


def test_report_of_too_many_endpoints_leaves_them_out() -> None:
    """It must fit an event."""
    taken: list[str] = []
    observatory = LatencyObservatory()
    for number in range(MAX_ENDPOINTS):
        observatory.endpoint(f"ws://{number}").series(canary=False).first(0.1, 1)
    LatencyReporter(observatory, lambda _, payload: taken.append(payload), 60).report_news()
    assert len(observatory.report().to_json()) > MAX_PAYLOAD_BYTES > len(taken[0])
    assert json.loads(taken[0])["answers"]["tokens"] == MAX_ENDPOINTS


def test_interval_must_be_one() -> None:
    """Zero would be all the time."""
    with pytest.raises(ValueError, match="report_latency_s"):
        SeedanceClient(report_latency_s=0)
