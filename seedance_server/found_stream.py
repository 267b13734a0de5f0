"""What comes of looking for a stream: it can be sent from somewhere on, or there is a reason why not.

It must not know where streams are looked for.
"""

from __future__ import annotations

import hashlib

from attrs import field, frozen

from seedance_server.frame_source import FrameSource
from seedance_server.journal.records import StreamRecord, StreamState
from seedance_server.stream import Stream
from seedance_wire.messages import ResumeFailure

__all__ = ["FoundStream", "ResumeRefused", "last_readable_id"]


class ResumeRefused(Exception):  # noqa: N818 - says what happened; between here and the attachment
    """A stream can't be sent from where the client asks; final.

    Attributes:
        code: Why.
        first_available_id: The first frame that is kept, where that may be told.
        last_id: The last frame written, likewise.
    """

    def __init__(self, code: ResumeFailure, first_available_id: int = 1, last_id: int = 0) -> None:
        super().__init__(code.value)
        self.code = code
        self.first_available_id = first_available_id
        self.last_id = last_id


@frozen(kw_only=True)
class FoundStream:
    """A stream that can be sent.

    Attributes:
        source: Its frames.
        stream: Its producer, while it isn't ended.
        first_available_id: The first frame that is kept.
        last_id: The last frame that there is.
        digest: Hash of the text up to the client's cursor, if it was computed.
    """

    source: FrameSource
    stream: Stream | None
    first_available_id: int
    last_id: int
    digest: hashlib._Hash | None = field(default=None, repr=False)

    @property
    def is_live(self) -> bool:
        """Whether there will be more frames than there are."""
        return self.stream is not None


def last_readable_id(record: StreamRecord) -> int:
    """The last frame that a reader can get: that a stream was given up is said in one that isn't written."""
    return record.last_id + (record.state is StreamState.ABANDONED)
