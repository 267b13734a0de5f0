"""How far a client has come in an answer: an event's ``id:``, which ``Last-Event-ID`` gives back.

An answer is one stream of frames for each choice, so the place in it is one frame number for each: ``17``, or
``17-4-0``. What comes after the last frame of all counts on from the first number: one for the usage, one
more for the end. So every event has its own id, and what is behind one is the same whenever it is asked for.

It must not know frames or where they are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from seedance_server.http.refusal import Refusal

__all__ = ["format_cursor", "parse_cursor"]

_CURSOR = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})*")


def format_cursor(positions: Sequence[int]) -> str:
    """The id of the event after which each choice is at this frame."""
    return "-".join(map(str, positions))


def parse_cursor(text: str | None, choices: int) -> list[int]:
    """Reads what a client has; nothing is the beginning.

    Raises:
        Refusal: It isn't an id of this answer's events.
    """
    if text is None or not text.strip():
        return [0] * choices
    text = text.strip()
    positions = [int(part) for part in text.split("-")] if _CURSOR.fullmatch(text) else []
    if positions == [0]:
        return [0] * choices
    if len(positions) != choices:
        raise Refusal(
            status=400,
            message=f"not the id of an event of this answer: {text[:80]!r}",
            param="starting_after",
            code="invalid_cursor",
        )
    return positions
