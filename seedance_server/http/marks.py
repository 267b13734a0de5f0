"""What a request says of itself in its headers: the trace that it belongs to, and whether it is a canary.

A header that makes no sense marks nothing; no request fails for it, as W3C Trace Context (4.3) has it.

It must not know what the marks are for.
"""

from __future__ import annotations

from attrs import frozen
from starlette.requests import Request

from seedance_server.upgrade import is_canary
from seedance_wire.field_rules import InvalidFieldError, check_traceparent

__all__ = ["Marks", "marks_of"]


@frozen
class Marks:
    """One request's.

    Attributes:
        traceparent: The trace that it belongs to, if it says one.
        is_canary: Whether it is to be looked at apart.
    """

    traceparent: str | None = None
    is_canary: bool = False


def marks_of(request: Request) -> Marks:
    """Reads ``traceparent`` and ``X-Canary``."""
    traceparent = request.headers.get("traceparent")
    try:
        check_traceparent("traceparent", traceparent)
    except InvalidFieldError:
        traceparent = None
    return Marks(traceparent, is_canary(request.headers.get("x-canary")))
