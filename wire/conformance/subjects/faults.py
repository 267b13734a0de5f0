"""Ways to break our own client and server on purpose, each of which the checks must notice, and where.

A fault is a function that changes one rule of the running program and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

__all__ = ["CLIENT_FAULTS", "SERVER_FAULTS"]


def _new_key_each_time() -> None:
    """A SUBMIT that is sent again looks like another request: a cut may start it twice."""
    from seedance_wire.connection import Connection
    from seedance_wire.messages import Submit

    send = Connection.send

    def forgetful(self: Connection, *messages: Any) -> bytes | str:
        fresh = secrets.token_bytes(16)
        changed = (evolve(m, idempotency_key=fresh) if isinstance(m, Submit) else m for m in messages)
        return send(self, *changed)

    Connection.send = forgetful  # type: ignore[method-assign]


def _believes_any_digest() -> None:
    """A text that differs from the server's is never noticed while the stream runs."""
    from seedance_wire.received_streams import ReceivedStreams

    ReceivedStreams.compare = lambda _self, _checkpoint: None  # type: ignore[method-assign]


def _fights_over_its_session() -> None:
    """It comes back to a session that a newer connection has, which then comes back in its turn."""
    from seedance_sdk import reconnect

    fighting = {**reconnect.CLOSE_REACTIONS, 4409: reconnect.Reaction.RESUME}
    reconnect.CLOSE_REACTIONS = fighting


def _ignores_the_window() -> None:
    """It sends whatever is ready, and fills the memory of a client that does not read."""
    from seedance_wire.window import SlidingWindow

    SlidingWindow.size = property(lambda _self: 1_000_000)  # type: ignore[assignment,method-assign]
    SlidingWindow.room = property(lambda _self: 1_000_000)  # type: ignore[assignment,method-assign]
    SlidingWindow.can_send = lambda _self, _size_bytes: True  # type: ignore[method-assign]
    SlidingWindow.used = property(lambda _self: 0.0)  # type: ignore[assignment,method-assign]


def _accepts_any_ack() -> None:
    """An ACK of frames that were never sent opens the window for them."""
    from seedance_wire.state import ProtocolState

    ProtocolState._check_processed = lambda *_: None  # type: ignore[method-assign] # noqa: SLF001


def _takes_any_number() -> None:
    """A client's messages may be missing, and nobody notices."""
    from seedance_wire.sequence_ids import SequenceIds

    SequenceIds.fault = lambda _self, _sequence_id: None  # type: ignore[method-assign]


CLIENT_FAULTS: Mapping[str, Callable[[], None]] = {
    "believes-any-digest": _believes_any_digest,
    "fights-over-its-session": _fights_over_its_session,
    "new-key-each-time": _new_key_each_time,
}
SERVER_FAULTS: Mapping[str, Callable[[], None]] = {
    "accepts-any-ack": _accepts_any_ack,
    "ignores-the-window": _ignores_the_window,
    "takes-any-number": _takes_any_number,
}
