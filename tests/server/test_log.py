"""Tests of `seedance_server.log`."""

import io
import json
import logging

import pytest
import structlog
import trio

from seedance_server.config import Config
from seedance_server.log import MAX_TEXT_CHARS, configure_logging, printable
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.failing_journal import FailingJournal
from tests.server.wire_client import wire_client


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


SECRETS = ("what-nobody-may-read", "the-key-of-a-client-1", "an answer that is private")


async def test_lines_of_a_request_carry_its_names_and_nothing_of_what_was_said(
    monkeypatch, autojump_clock
) -> None:
    """Refused, failed, cut, parked, resumed: whoever searches for a stream finds all, and reads no secret."""
    sink = io.StringIO()
    monkeypatch.setattr("sys.stderr", sink)
    configure_logging("debug", "json")
    prompt, key, answer = SECRETS
    config = Config(model_path="m", api_key=key, orphan_grace_s=0.1)
    engine, journal = ScriptedEngine([answer] * 200), FailingJournal()
    async with serve_in_memory(engine, config=config, journal=journal) as server:
        headers = [(b"Authorization", f"Bearer {key}".encode())]
        async with wire_client(server.connect(), headers=headers) as client:
            await client.submit(prompt, model="another")
            await client.refused()
            await client.submit(prompt)
            stream_id = await client.accepted()
            taken = await client.frames(3)
            former = client.welcome
        await trio.sleep(2)  # parked
        async with wire_client(server.connect(), headers=headers, former=former, known=2) as client:
            await client.resume(stream_id + 1)
            await client.resume(stream_id, taken)
            await client.frames(5)
            journal.faults["append"] = lambda *_, **__: KeyError("a bug")
            await client.close_code()
        await trio.sleep(2)
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert not any(secret in sink.getvalue() for secret in SECRETS)
    of_the_stream = {"request parked", "stream taken over", "resume refused", "stream failed"}
    assert of_the_stream <= {line["event"] for line in lines}
    for line in lines:
        if line["event"] in of_the_stream:
            assert line["stream_id"] == (2 if line["event"] == "resume refused" else 1), line
        if line["event"] in {*of_the_stream, "request over", "request refused", "session lost", "peer left"}:
            assert (line["tenant"], line["session"]) == ("local", former.session_id), line
