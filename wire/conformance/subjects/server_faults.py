"""Ways to break our own server on purpose, each of which the checks must notice, and where.

A fault is a function that changes one rule of the running program and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seedance_wire.sequence_ids import SequenceIds
from seedance_wire.state import ProtocolState
from seedance_wire.window import SlidingWindow

__all__ = ["SERVER_FAULTS"]


def _replace(owner: Any, name: str, new: object) -> None:
    setattr(owner, name, new)


def _ignores_the_window() -> None:
    """It sends whatever is ready, and fills the memory of a client that does not read."""
    _replace(SlidingWindow, "size", property(lambda _self: 1_000_000))
    _replace(SlidingWindow, "room", property(lambda _self: 1_000_000))
    _replace(SlidingWindow, "used", property(lambda _self: 0.0))
    _replace(SlidingWindow, "can_send", lambda _self, _size_bytes: True)


def _accepts_any_ack() -> None:
    """An ACK of frames that were never sent opens the window for them."""
    _replace(ProtocolState, "_check_processed", lambda *_: None)


def _takes_any_number() -> None:
    """A client's messages may be missing, and nobody notices."""
    _replace(SequenceIds, "fault", lambda _self, _sequence_id: None)


SERVER_FAULTS: Mapping[str, Callable[[], None]] = {
    "accepts-any-ack": _accepts_any_ack,
    "ignores-the-window": _ignores_the_window,
    "takes-any-number": _takes_any_number,
}
"""By name."""
