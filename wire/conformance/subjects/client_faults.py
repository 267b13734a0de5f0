"""Ways to break our own client on purpose, each of which the checks must notice, and where.

A fault is a function that changes one rule of the running program and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from seedance_sdk import reconnect
from seedance_wire.connection import Connection
from seedance_wire.messages import Submit
from seedance_wire.received_streams import ReceivedStreams

__all__ = ["CLIENT_FAULTS"]


def _replace(owner: Any, name: str, new: object) -> None:
    setattr(owner, name, new)


def _new_key_each_time() -> None:
    """A SUBMIT that is sent again looks like another request: a cut may start it twice."""
    send = Connection.send

    def forgetful(self: Connection, *messages: Any) -> bytes | str:
        fresh = secrets.token_bytes(16)
        changed = (evolve(m, idempotency_key=fresh) if isinstance(m, Submit) else m for m in messages)
        return send(self, *changed)

    _replace(Connection, "send", forgetful)


def _believes_any_digest() -> None:
    """A text that differs from the server's is never noticed while the stream runs."""
    _replace(ReceivedStreams, "compare", lambda _self, _checkpoint: None)


def _fights_over_its_session() -> None:
    """It comes back to a session that a newer connection has, which then comes back in its turn."""
    fighting = {**reconnect.CLOSE_REACTIONS, 4409: reconnect.Reaction.RESUME}
    _replace(reconnect, "CLOSE_REACTIONS", fighting)


CLIENT_FAULTS: Mapping[str, Callable[[], None]] = {
    "believes-any-digest": _believes_any_digest,
    "fights-over-its-session": _fights_over_its_session,
    "new-key-each-time": _new_key_each_time,
}
"""By name."""
