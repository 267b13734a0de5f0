"""What each close code says, which end says it, and what a client does about it: one table.

The specification shows it (`PROTOCOL.md`), and a client that follows it never fights over a session and never
hammers a server that is full. Must not know how long anybody waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from attrs import frozen

from .errors import CloseCode

__all__ = ["CLOSE_RULES", "Advice", "CloseRule", "Speaker"]


class Speaker(Enum):
    """Who closes with a code."""

    SERVER = "server"
    CLIENT = "client"
    EITHER = "either"
    BETWEEN = "something in between"
    """Neither end of this protocol has a use for it; proxies and other servers do."""
    NOBODY = "nobody"
    """It never travels: a WebSocket library reports it."""


class Advice(Enum):
    """What a client does that still waits for something."""

    RESUME = "come back after a pause"
    MOVE = "come back at once, elsewhere if it can"
    WAIT = "come back after a longer pause"
    SHED = "fail the request that was too long, come back with the others"
    RAISE = "give up"


@frozen
class CloseRule:
    """One row.

    Attributes:
        meaning: Why it was closed.
        speaker: Who says so.
        advice: To the client.
        is_failure: Whether it speaks against the server, for a client that counts such things.
    """

    meaning: str
    speaker: Speaker
    advice: Advice
    is_failure: bool = False


CLOSE_RULES: Mapping[CloseCode, CloseRule] = MappingProxyType(
    {
        CloseCode.NORMAL: CloseRule("done, after BYE", Speaker.EITHER, Advice.RESUME),
        CloseCode.GOING_AWAY: CloseRule("the server leaves, after GOAWAY", Speaker.SERVER, Advice.MOVE),
        CloseCode.PROTOCOL_ERROR: CloseRule("WebSocket framing was violated", Speaker.EITHER, Advice.RAISE),
        CloseCode.UNSUPPORTED_DATA: CloseRule(
            "text where the subprotocol is binary, or the reverse", Speaker.EITHER, Advice.RAISE
        ),
        CloseCode.NO_STATUS: CloseRule("closed without a code", Speaker.NOBODY, Advice.RESUME, True),
        CloseCode.ABNORMAL: CloseRule("the connection was cut", Speaker.NOBODY, Advice.RESUME, True),
        CloseCode.INVALID_DATA: CloseRule("text that is not UTF-8", Speaker.EITHER, Advice.RAISE),
        CloseCode.POLICY_VIOLATION: CloseRule("refused", Speaker.BETWEEN, Advice.RAISE),
        CloseCode.MESSAGE_TOO_BIG: CloseRule("a message over the limit", Speaker.EITHER, Advice.SHED),
        CloseCode.INTERNAL_ERROR: CloseRule("the server failed", Speaker.SERVER, Advice.RESUME, True),
        CloseCode.SERVICE_RESTART: CloseRule("the server restarts", Speaker.BETWEEN, Advice.RESUME, True),
        CloseCode.TRY_AGAIN_LATER: CloseRule(
            "the server cannot serve just now: it is full, or its journal is full or failed",
            Speaker.SERVER,
            Advice.WAIT,
        ),
        CloseCode.TLS_FAILED: CloseRule("there was no TLS session", Speaker.NOBODY, Advice.RESUME, True),
        CloseCode.NODE_LEAVES: CloseRule(
            "as 1001, where a proxy keeps that one for itself", Speaker.BETWEEN, Advice.MOVE
        ),
        CloseCode.BAD_MESSAGE: CloseRule(
            "a malformed message, one that is not legal now, or a text that is not the one sent",
            Speaker.EITHER,
            Advice.RAISE,
        ),
        CloseCode.UNAUTHENTICATED: CloseRule("the key opens nothing any more", Speaker.SERVER, Advice.RAISE),
        CloseCode.FORBIDDEN: CloseRule("the key may not do this", Speaker.BETWEEN, Advice.RAISE),
        CloseCode.TIMED_OUT: CloseRule(
            "HELLO did not come in time, or no sign of life", Speaker.SERVER, Advice.RESUME
        ),
        CloseCode.SUPERSEDED: CloseRule("a newer connection has the session", Speaker.SERVER, Advice.RAISE),
        CloseCode.JOURNAL_GONE: CloseRule(
            "what is needed to go on is kept no more", Speaker.SERVER, Advice.RAISE
        ),
        CloseCode.FENCED: CloseRule(
            "the session's owner changed: come back for it", Speaker.SERVER, Advice.RESUME
        ),
        CloseCode.SLOW_READER: CloseRule("the client did not read in time", Speaker.SERVER, Advice.RESUME),
        CloseCode.QUOTA_EXCEEDED: CloseRule(
            "the client sends faster than it may", Speaker.SERVER, Advice.WAIT
        ),
    }
)
"""Every close code. One that is not here counts as a cut, since proxies have codes of their own."""
