"""Tests of `seedance_server.log`."""

import io
import json
import logging

import pytest
import structlog

from seedance_server.log import MAX_TEXT_CHARS, configure_logging, printable


@pytest.fixture(autouse=True)
def _restore_logging():
    yield
    structlog.reset_defaults()


HOSTILE = {
    "line break": "a\r\nb",
    "ansi": "\x1b[2Jboo",
    "bidi": "\u202egnp.exe",
    "separator": "a\u2028b",
    "surrogate": "\ud800",
    "null": "\0",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_printable_leaves_nothing_that_a_terminal_acts_on(text: str) -> None:
    """Controls, line breaks, bidi marks and surrogates are escaped."""
    assert printable(text).isprintable()


def test_printable_cuts_and_keeps_what_is_plain() -> None:
    """Client text is cut to 256 characters; plain text of any script stays."""
    assert printable("שלום 你好 ď 🚀") == "שלום 你好 ď 🚀"
    assert len(printable("x" * 2**20)) == MAX_TEXT_CHARS + 1


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_log_line_is_one_line_whatever_a_client_sends(style, monkeypatch) -> None:
    """No value of any line can forge a second line or reach the terminal."""
    sink = io.StringIO()
    monkeypatch.setattr("sys.stderr", sink)
    configure_logging("info", style)
    structlog.get_logger("t").info(
        "seen", **{f"k{i}": text for i, text in enumerate(HOSTILE.values())}, size=7
    )
    text = sink.getvalue()
    assert text.count("\n") == 1
    assert text[:-1].isprintable() or style == "json"
    if style == "json":
        assert json.loads(text)["size"] == 7
        assert all(str(value).isprintable() for value in json.loads(text).values())


def test_a_traceback_cannot_forge_a_line(monkeypatch) -> None:
    """A traceback's lines stand behind a bar, its text is escaped."""
    sink = io.StringIO()
    monkeypatch.setattr("sys.stderr", sink)
    configure_logging("info", "console")
    failure = ValueError("x\n2026-01-01 [info] forged \x1b[31m")
    structlog.get_logger("t").error("failed", exc_info=failure)
    first, *rest = sink.getvalue().rstrip("\n").split("\n")
    assert "failed" in first
    assert rest
    assert all(line.startswith("    | ") for line in rest if line)
    assert "\x1b" not in sink.getvalue()


def test_the_libraries_stay_quiet() -> None:
    """They would log what clients send, headers and keys included."""
    configure_logging("debug", "console")
    for library in ("trio-websocket", "wsproto", "h11"):
        assert not logging.getLogger(library).isEnabledFor(logging.INFO)
