"""Tests of `seedance_sdk.cli.doctor`."""

import json

import pytest

from seedance_sdk.cli.context import Context
from seedance_sdk.testing import Answer, ScriptedServer
from tests.sdk.cli.terminal import Terminal


def topics(terminal: Terminal) -> dict[str, str]:
    """The verdict on each topic, and its words."""
    found = [line.split(maxsplit=1) for line in terminal.lines if not line.startswith("  ")]
    return {rest.split()[0]: verdict for verdict, rest in found}


def test_doctor_finds_a_good_server_good() -> None:
    """Each step has its line, and the exit code says that all is well."""
    terminal = Terminal(ScriptedServer(Answer("H")))
    assert terminal.run("doctor") == 0
    found = topics(terminal)
    assert {found.pop("versions"), found.pop("clock")} == {
        "warn"
    }  # a script has a version and a time of its own
    assert set(found.values()) == {"ok"}
    assert {"URL", "key", "authentication", "model", "round", "answer"} <= found.keys()


def test_doctor_asks_for_no_token_when_it_is_told_not_to() -> None:
    """A look that costs nothing."""
    server = ScriptedServer()
    terminal = Terminal(server)
    assert terminal.run("doctor", "--no-request") == 0
    assert server.requests == []
    assert "answer" not in topics(terminal)


def test_doctor_says_what_to_do_about_a_wrong_key() -> None:
    """It fails there, and what could only fail too is not tried."""
    terminal = Terminal(ScriptedServer(refuse_status=401))
    assert terminal.run("doctor") == 1
    assert topics(terminal)["authentication"] == "fail"
    assert "SEEDANCE_API_KEY" in terminal.out
    assert "model" not in topics(terminal)


def test_doctor_warns_without_failing() -> None:
    """A server that keeps nothing works, and one should know."""
    terminal = Terminal(ScriptedServer(Answer("H"), durable=False))
    assert terminal.run("doctor", "--url", "ws://far.example:8080") == 0
    found = topics(terminal)
    assert (found["key"], found["model"]) == ("warn", "warn")


def test_doctor_fails_at_a_url_that_is_none() -> None:
    """Before anything is tried."""
    terminal = Terminal()
    assert terminal.run("doctor", "--url", "http://x") == 1
    assert list(topics(terminal)) == ["URL"]


def test_doctor_writes_what_it_found_for_programs() -> None:
    """With verdict and advice apart."""
    terminal = Terminal(ScriptedServer(refuse_status=403))
    assert terminal.run("doctor", "--json") == 1
    last = json.loads(terminal.out)[-1]
    assert (last["topic"], last["verdict"]) == ("authentication", "fail")
    assert last["advice"]


def test_doctor_begins_with_the_network_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port where nothing listens is told as such, and ends it."""
    terminal = Terminal()
    terminal.context = Context(stdout=terminal.context.stdout, stderr=terminal.context.stderr)
    assert terminal.run("doctor", "--url", "ws://127.0.0.1:1") == 1
    assert topics(terminal) == {"URL": "ok", "key": "ok", "DNS": "ok", "TCP": "fail"}
