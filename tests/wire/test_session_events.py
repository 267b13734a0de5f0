"""What a session tells."""

from typing import get_args

import attrs

from seedance_wire.messages import ResumeFailure, ServerMessage
from seedance_wire.session_events import SessionEvent, SessionLost, StreamLost


def test_events_are_what_a_server_says_and_what_is_lost() -> None:
    """All but the rejection, which is told as a loss."""
    names = {cls.__name__ for cls in get_args(SessionEvent)}
    assert names == {cls.__name__ for cls in get_args(ServerMessage)} - {"ResumeRejected"} | {
        "SessionLost",
        "StreamLost",
    }
    assert all(attrs.has(cls) for cls in get_args(SessionEvent))


def test_losses_are_values() -> None:
    """They compare, and say no more than is known."""
    lost = StreamLost(stream_id=1, failure=ResumeFailure.EXPIRED)
    assert lost == StreamLost(stream_id=1, failure=ResumeFailure.EXPIRED, first_available_id=1, last_id=0)
    assert SessionLost(session_id="s") != SessionLost(session_id="t")
