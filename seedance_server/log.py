"""Log lines: structured, on stderr, one line each whatever a client sends.

Text is cut and escaped on its way out, for every value of every line, so no caller can forget it: a line
break can't forge a second line, an escape sequence can't talk to the operator's terminal. What is done for a
request has its names in every line: they are bound to the task. Prompts, answers and keys are never handed to
a logger in the first place.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

__all__ = ["MAX_TEXT_CHARS", "configure_logging", "printable"]

MAX_TEXT_CHARS = 256
"""Longest text in a log line; enough for any name or reason, too short to store things in."""
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def printable(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Cuts ``text`` to ``limit`` characters and escapes controls, line breaks, bidi marks and surrogates."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)


def _escape_values(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key == "exc_info":
            continue
        if isinstance(value, bytes):
            event[key] = printable(repr(value[:MAX_TEXT_CHARS]))
        elif not isinstance(value, bool | int | float | None):
            event[key] = printable(str(value))
    return event


def _format_traceback(sink: TextIO, failure: structlog.typing.ExcInfo) -> None:
    """Tracebacks keep their lines, each behind a bar, so an error's text can't pass for a line of its own."""
    for piece in traceback.format_exception(*failure):
        sink.writelines(
            "\n    | " + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
            for line in piece.splitlines()
        )


def configure_logging(level: str, style: str) -> None:
    """Sets logging up for the process.

    Args:
        level: The least severe level printed: debug, info, warning or error.
        style: ``console`` for people, ``json`` for machines.
    """
    renderer: Any
    if style == "json":
        renderer = structlog.processors.JSONRenderer()
        tail = [structlog.processors.format_exc_info]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_format_traceback
        )
        tail = []
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,  # tenant, session, stream_id: bound where a task begins
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _escape_values,
            *tail,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,  # loggers are module globals; a reconfiguration must reach them
    )
    # They log what clients send, headers and keys included, below this level.
    for library in ("trio-websocket", "wsproto", "h11"):
        logging.getLogger(library).setLevel(logging.WARNING)
