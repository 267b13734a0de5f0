"""What a client's session tells beyond the messages that came: what is lost.

Numbers of streams and requests in every event are the application's, as `client_session.py` gave them out.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from .messages import (
    Accepted,
    Checkpoint,
    Flow,
    Frame,
    GoAway,
    Refused,
    Resumed,
    ResumeFailure,
    Status,
    Welcome,
)

__all__ = ["SessionEvent", "SessionLost", "StreamLost"]


@frozen(kw_only=True)
class StreamLost:
    """A stream has no end that could still be had, or a request will have no stream. Final.

    Attributes:
        stream_id: The stream; None if the request had none yet.
        sequence_id: Then the request, as `ClientSession.submit` numbered it.
        failure: Why; None if the stream did not survive its connection because its durability is ``none``.
        first_available_id: The first frame that could be had; 1 if that is not known.
        last_id: The last one; 0 if that is not known.
    """

    stream_id: int | None = None
    sequence_id: int | None = None
    failure: ResumeFailure | None
    first_available_id: int = 1
    last_id: int = 0


@frozen(kw_only=True)
class SessionLost:
    """The server does not know the session any more; a new one began.

    Attributes:
        session_id: The one that is gone.
    """

    session_id: str


SessionEvent: TypeAlias = (
    Welcome
    | Accepted
    | Refused
    | Resumed
    | Frame
    | Checkpoint
    | Flow
    | Status
    | GoAway
    | StreamLost
    | SessionLost
)
"""What `ClientSession.next_event` returns. Numbers of streams and requests in it are the application's."""
