"""Tests of `seedance_sdk.cli.context`."""

import io

import pytest

from seedance_sdk.cli.context import Context, printable
from seedance_sdk.testing import Answer, ScriptedServer


def test_printable_leaves_nothing_that_steers_a_terminal() -> None:
    """What a model says must not move the cursor, set the title or hide text."""
    assert printable("plain\ttext\né 日本 😀") == "plain\ttext\né 日本 😀"
    assert printable("a\x1b[2Jb\x07c\rd\x9be\u202ef") == "a�[2Jb�c�d�e�f"


def test_context_writes_as_it_is_into_a_pipe() -> None:
    """Whoever reads it is a program."""
    out = io.StringIO()
    context = Context(stdout=out, stderr=io.StringIO(), connector=ScriptedServer())
    context.write("a\x1bb")
    assert out.getvalue() == "a\x1bb"


def test_context_complains_beside_what_was_asked_for() -> None:
    """On stderr, without markup and without control characters."""
    out, err = io.StringIO(), io.StringIO()
    Context(stdout=out, stderr=err, connector=ScriptedServer()).complain("[bold]no\x1b")
    assert (out.getvalue(), err.getvalue()) == ("", "[bold]no�\n")


def test_context_makes_clients_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEEDANCE_URL and SEEDANCE_API_KEY, where no flag says otherwise."""
    monkeypatch.setenv("SEEDANCE_URL", "ws://elsewhere:1/v1/chat")
    monkeypatch.setenv("SEEDANCE_API_KEY", "k")
    server = ScriptedServer(Answer("hi"), Answer("hi"))
    context = Context(connector=server)
    for url, key in ((None, None), ("ws://here:2", "mine")):
        with context.client(url, key) as client:
            client.complete(prompt="x")
    assert [endpoint.url for endpoint in server.endpoints] == [
        "ws://elsewhere:1/v1/chat",
        "ws://here:2/v1/chat",
    ]
    assert [one.headers["Authorization"] for one in server.endpoints] == ["Bearer k", "Bearer mine"]
