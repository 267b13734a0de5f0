"""What a client knows of the text of each stream that it receives: delta context, digest, gaps.

Every frame goes through `apply`, which gives out the next piece of its stream as plain text or drops the
frame. Numbers are the business of `state.py`; this file keeps what hangs on the text itself. A position is
handed over from one connection to the next with `position` and `know`.
"""

from __future__ import annotations

from .cursor import ReceiveCursor, Verdict
from .delta import apply_difference, context_after
from .envelope import CodedDelta, Gap
from .errors import DecodeError, DivergedError, RemoteProtocolError
from .field_rules import U64
from .messages import Checkpoint, Delta, Error, Flush, Frame
from .running_digest import RunningDigest
from .state import ProtocolState, Role

__all__ = ["MAX_GAPS", "ReceivedStreams"]

MAX_GAPS = 3
"""Gaps of a stream that are answered with RESUME before a frame must have been applied. More of them would be
a server that cannot number its frames; picked, not measured."""


class ReceivedStreams:
    """The receiving side of every stream of a connection.

    Args:
        state: The connection's; a frame that is given out has advanced it.
    """

    def __init__(self, state: ProtocolState) -> None:
        self._state = state
        self._contexts: dict[int, int] = {}
        self._digests: dict[int, RunningDigest] = {}  # of the streams that are not over
        self._gaps: dict[int, int] = {}  # since the last frame that was applied
        self._waiting: set[int] = set()  # for RESUMED, because of a gap
        self.applied = 0
        self.duplicates = 0
        self.stale = 0

    @property
    def running(self) -> tuple[int, ...]:
        """The streams of which something may come."""
        return tuple(self._digests)

    def begin(self, stream_id: int) -> None:
        """Notes that a stream begins."""
        self._digests[stream_id] = RunningDigest()

    def know(self, stream_id: int, cursor: ReceiveCursor, digest: RunningDigest) -> None:
        """Notes how far a stream was applied on earlier connections."""
        self._state.know_position(stream_id, cursor)
        self._digests[stream_id] = digest

    def position(self, stream_id: int) -> tuple[ReceiveCursor, RunningDigest] | None:
        """Returns how far a stream came and its digest, or None if it is over or never was."""
        cursor, digest = self._state.position(stream_id), self._digests.get(stream_id)
        return None if cursor is None or digest is None else (cursor, digest)

    def resumed(self, stream_id: int) -> None:
        """Notes that a stream goes on: its next frame has its text whole."""
        self._contexts.pop(stream_id, None)
        self._waiting.discard(stream_id)
        self._digests.setdefault(stream_id, RunningDigest())

    def forget(self, stream_id: int) -> None:
        """Notes that nothing of a stream will come."""
        self._contexts.pop(stream_id, None)
        self._waiting.discard(stream_id)
        self._gaps.pop(stream_id, None)
        self._digests.pop(stream_id, None)

    def compare(self, checkpoint: Checkpoint) -> None:
        """Compares the digests of a checkpoint with ours, where both are of the same frame.

        Raises:
            DivergedError: Two differ.
        """
        for stream in checkpoint.streams:
            position = self.position(stream.stream_id)
            if position is None or position[0].applied != stream.frame_id:
                continue
            ours = position[1].prefix
            if ours is not None and ours != stream.digest:
                raise DivergedError(stream.stream_id)

    def miss(self, stream_id: int) -> Gap | None:
        """Takes a frame of which nothing is known but that something before it was lost.

        Returns:
            A gap the first time, None if RESUME is under way.

        Raises:
            RemoteProtocolError: The stream cannot be resumed, or nothing of it may come.
        """
        behind = Flush(stream_id=stream_id, id=U64, epoch=U64, offset=0)  # fits nowhere: behind everything
        event = self.apply(behind)
        assert event is None or isinstance(event, Gap)  # noqa: S101 - it can't be applied
        return event

    def apply(self, received: Frame | CodedDelta) -> Frame | Gap | None:
        """Takes a frame.

        Returns:
            It, with plain text, if it is the next of its stream; a gap the first time that it is not; None if
            it was dropped.

        Raises:
            RemoteProtocolError: It is none that may come, or the end of another text than was received.
        """
        stream_id = received.stream_id
        match Verdict.STALE if stream_id in self._waiting else self._state.judge(received):
            case Verdict.DUPLICATE:
                self.duplicates += 1
                return None
            case Verdict.STALE:
                self.stale += 1
                return None
            case Verdict.GAP:
                return self._gap(received)
        frame = self._undo_difference(received) if isinstance(received, CodedDelta) else received
        text = frame.text.encode() if isinstance(frame, Delta) else b""
        self._state.advance_frame(Role.SERVER, frame, len(text))
        self.applied += 1
        self._gaps.pop(stream_id, None)
        if isinstance(frame, Delta):
            context = context_after(frame.text, self._contexts.get(stream_id))
            if context is not None:
                self._contexts[stream_id] = context
            self._digests[stream_id].update(text)
            return frame
        self._contexts.pop(stream_id, None)
        if isinstance(frame, Error):
            self.forget(stream_id)
        elif frame.final is not None:
            whole = self._digests[stream_id].whole
            self.forget(stream_id)
            if whole is not None and whole != frame.final.digest:
                raise DivergedError(stream_id)
        return frame

    def _gap(self, received: Frame | CodedDelta) -> Gap:
        stream_id = received.stream_id
        gaps = self._gaps[stream_id] = self._gaps.get(stream_id, 0) + 1
        if gaps > MAX_GAPS:
            raise RemoteProtocolError(f"stream {stream_id}: frames are missing, resumed {MAX_GAPS} times")
        self._waiting.add(stream_id)
        return Gap(stream_id=stream_id, frame_id=received.id)

    def _undo_difference(self, frame: CodedDelta) -> Delta:
        context = self._contexts.get(frame.stream_id)
        if context is None:
            raise DecodeError(f"stream {frame.stream_id}: a difference to nothing")
        return Delta(
            stream_id=frame.stream_id,
            id=frame.id,
            epoch=frame.epoch,
            offset=frame.offset,
            text=apply_difference(frame.difference, context),
            token_count=frame.token_count,
            logprobs=frame.logprobs,
        )
