"""Where one stream is."""

from seedance_wire.cursor import ReceiveCursor
from seedance_wire.rules import StreamState
from seedance_wire.stream_progress import StreamProgress


def test_progress_is_asked_again_only_while_resuming() -> None:
    """Frames are dropped between RESUME and RESUMED, and at no other time."""
    asked = {state for state in StreamState if StreamProgress(state, ReceiveCursor(1)).asked_again}
    assert asked == {StreamState.RESUMING}
