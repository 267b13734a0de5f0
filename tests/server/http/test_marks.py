"""Tests of `seedance_server.http.marks`."""

import pytest
from starlette.requests import Request

from seedance_server.http.marks import Marks, marks_of

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "marks"),
    [
        ({}, Marks()),
        ({"traceparent": TRACE}, Marks(TRACE)),
        ({"X-Canary": " TRUE "}, Marks(is_canary=True)),
        ({"traceparent": "nonsense", "X-Canary": "1"}, Marks()),
        ({"traceparent": TRACE.upper()}, Marks()),
    ],
)
def test_marks_are_what_the_headers_soundly_say(headers: dict[str, str], marks: Marks) -> None:
    """A header that makes no sense marks nothing, and fails nothing."""
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    assert marks_of(Request({"type": "http", "headers": raw})) == marks
