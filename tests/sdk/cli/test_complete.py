"""Tests of `seedance_sdk.cli.complete`."""

import json

import pytest

from seedance_sdk.testing import Answer, Cut, ErrorCode, ScriptedServer
from tests.sdk.cli.terminal import Terminal


def test_complete_continues_stdin_into_stdout() -> None:
    """Exactly the answer: no line break of ours, nothing on stderr."""
    server = ScriptedServer(Answer("upon", " a time\n"))
    terminal = Terminal(server, stdin="Once ")
    assert terminal.run("complete") == 0
    assert (terminal.out, terminal.err) == ("upon a time\n", "")
    assert server.requests[0].prompt == "Once "


def test_complete_takes_the_prompt_from_the_command_line() -> None:
    """With the parameters that were given, and the prompt before the answer where that is asked for."""
    server = ScriptedServer(Answer("b"))
    terminal = Terminal(server)
    assert (
        terminal.run("complete", "a", "--echo", "--temperature", "0", "--max-tokens", "3", "--stop", "x") == 0
    )
    assert terminal.out == "ab"
    sampling = server.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop) == (0.0, 3, ("x",))


def test_complete_goes_on_after_a_cut() -> None:
    """A pipe gets each byte once."""
    terminal = Terminal(ScriptedServer(Answer("one ", Cut(), "two ", Cut(), "three")))
    assert terminal.run("complete", "x") == 0
    assert terminal.out == "one two three"


def test_complete_writes_an_object_where_one_is_asked_for() -> None:
    """For programs: text, reason, usage and times."""
    terminal = Terminal(ScriptedServer(Answer("hi")))
    assert terminal.run("complete", "x", "--json") == 0
    written = json.loads(terminal.out)
    assert (written["text"], written["finish_reason"]) == ("hi", "stop")
    assert written["usage"]["completion_tokens"] == 1
    assert "prefill_ms" in written["timing"]


def test_complete_ends_with_figures_where_they_are_asked_for() -> None:
    """On stderr, so that the text stays the text."""
    terminal = Terminal(ScriptedServer(Answer("a", "b")))
    assert terminal.run("complete", "x", "--stats") == 0
    assert terminal.out == "ab"
    assert terminal.err.startswith("2 tokens · first ")


@pytest.mark.parametrize("answer", [Answer("begun ", error=ErrorCode.INTERNAL)])
def test_complete_fails_in_one_line_when_the_answer_does(answer: Answer) -> None:
    """What came is written; the rest is an error."""
    terminal = Terminal(ScriptedServer(answer))
    assert terminal.run("complete", "x") == 1
    assert terminal.out == "begun "
    assert terminal.err.startswith("seedance: error: ")
    assert terminal.err.count("\n") == 1
