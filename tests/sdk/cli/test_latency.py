"""Tests of `seedance_sdk.cli.latency`."""

import json

from seedance_sdk.testing import Answer, ErrorCode, Refusal, ScriptedServer
from tests.sdk.cli.terminal import Terminal


def test_latency_asks_as_often_as_it_is_told_and_shows_what_it_took() -> None:
    """Quantiles, the histogram with its shares, and what came of the requests."""
    server = ScriptedServer(respond=lambda _: Answer("a", "b", "c"))
    terminal = Terminal(server)
    assert terminal.run("latency", "--requests", "6", "--streams", "3", "--max-tokens", "9") == 0
    assert len(server.requests) == 6
    assert {request.sampling.max_tokens for request in server.requests} == {9}
    assert terminal.lines[0].strip().startswith("6 of 6 answers")
    [row] = [line.split() for line in terminal.lines if "first token" in line]
    assert row[2] == "6"
    shares = [line for line in terminal.lines if " ms " in line and "%" in line]
    assert shares[-1].endswith("100.00%")
    assert terminal.lines[-1].startswith("18 tokens in ")


def test_latency_writes_the_whole_report_where_that_is_asked_for() -> None:
    """The client's own report, for programs."""
    terminal = Terminal(ScriptedServer(respond=lambda _: Answer("a", "b")))
    assert terminal.run("latency", "--requests", "2", "--json") == 0
    assert json.loads(terminal.out)["answers"]["finished"] == 2


def test_latency_goes_on_when_an_answer_fails_and_says_so() -> None:
    """One that fails is a figure too; the exit code tells scripts."""
    answers = iter([Answer("a", error=ErrorCode.INTERNAL), Answer("b"), Answer("c")])
    terminal = Terminal(ScriptedServer(respond=lambda _: next(answers)))
    assert terminal.run("latency", "--requests", "3", "--streams", "1") == 1
    assert terminal.lines[-1].endswith("1 failed")


def test_latency_stops_at_once_when_asking_again_makes_no_sense() -> None:
    """A request that is wrong stays wrong."""
    server = ScriptedServer(respond=lambda _: Refusal(ErrorCode.INVALID_REQUEST, "no"))
    terminal = Terminal(server)
    assert terminal.run("latency", "--requests", "1000", "--streams", "1") == 1
    assert len(server.requests) == 1
    assert terminal.err == "seedance: error: no\n"
