"""The machine that follows `rules.py`: the tables decide, this file counts.

What it adds is arithmetic (rule 5 there): which sequence id, frame id, offset and epoch is next. A call
checks everything before it changes anything, so one that raises has changed nothing; who is at fault follows
from who spoke. The machine knows no encoding, no text and no window, and never waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from attrs import evolve

from .cursor import ReceiveCursor, Verdict
from .envelope import CodedDelta, InvalidSubmit
from .errors import CloseCode, LocalProtocolError, RemoteProtocolError
from .messages import (
    Accepted,
    Ack,
    Cancel,
    Checkpoint,
    Delta,
    Durability,
    Event,
    Final,
    Flow,
    Flush,
    Frame,
    Hello,
    Message,
    Refused,
    Resume,
    Resumed,
    ResumeRejected,
    Status,
    Submit,
    Welcome,
)
from .rules import (
    CLIENT_KINDS,
    CONNECTION_TABLE,
    CROSSINGS,
    MAX_PENDING,
    REMEMBERED_STREAMS,
    SERVER_KINDS,
    STREAM_TABLE,
    ConnectionState,
    Kind,
    Role,
    StreamState,
)
from .sequence_ids import SequenceIds
from .stream_progress import StreamProgress

__all__ = ["ConnectionState", "ProtocolState", "Role"]


class ProtocolState:
    """The state of one connection, seen from one end.

    Args:
        role: This end. Its own violations are local errors, the other end's remote ones.
        max_streams: Streams that a server may begin here to have running at once.

    Attributes:
        connection: Where the connection is.
    """

    def __init__(self, role: Role, max_streams: int) -> None:
        self.connection = ConnectionState.START
        self._role = role
        self._max_streams = max_streams
        self._epoch = 0
        self._asked_session: str | None = None  # of HELLO
        self._sequence_ids = SequenceIds()
        self._streams: dict[int, StreamProgress] = {}
        self._away: OrderedDict[int, ReceiveCursor] = OrderedDict()  # where streams were left, oldest first
        self._highest_stream_id = 0

    @property
    def next_sequence_id(self) -> int:
        """What the client's next new SUBMIT, CANCEL or EVENT carries; known from WELCOME on."""
        return self._sequence_ids.next

    @property
    def pending_submits(self) -> int:
        """SUBMITs without an answer."""
        return self._sequence_ids.submits

    @property
    def open_streams(self) -> int:
        """Streams that were accepted, or asked for again, and have not ended."""
        return len(self._streams)

    def fail(self) -> None:
        """Enters ERROR, for good."""
        self.connection = ConnectionState.ERROR

    def know_streams(self, highest_stream_id: int) -> None:
        """Notes that streams up to this number began on earlier connections of the session."""
        self._highest_stream_id = max(self._highest_stream_id, highest_stream_id)

    def know_position(self, stream_id: int, cursor: ReceiveCursor) -> None:
        """Notes how far the client got with a stream on earlier connections of the session."""
        self._leave(stream_id, cursor)

    def position(self, stream_id: int) -> ReceiveCursor | None:
        """Returns how far a stream came, or None if that is not remembered."""
        progress = self._streams.get(stream_id)
        return self._away.get(stream_id) if progress is None else progress.cursor

    def judge(self, frame: Frame | CodedDelta) -> Verdict:
        """Says what the receiving client does with a frame; changes nothing.

        A frame that crossed with RESUME is STALE. One after which RESUME can help is a GAP.

        Raises:
            RemoteProtocolError: The stream never was, or has ended before this frame, or a frame is missing
                that cannot be had again.
        """
        progress = self._streams.get(frame.stream_id)
        if progress is not None:
            if progress.asked_again:
                return Verdict.STALE
            verdict = progress.cursor.judge(frame)
            if verdict is Verdict.GAP and not progress.replayable:
                raise RemoteProtocolError(progress.cursor.misfit(frame, frame.stream_id))
            return verdict
        if frame.epoch < self._epoch:
            return Verdict.STALE
        left = self._away.get(frame.stream_id)
        if left is not None and frame.id <= left.applied:
            return Verdict.DUPLICATE
        raise RemoteProtocolError(
            f"a frame of stream {frame.stream_id}, which {self._absence(frame.stream_id)}"
        )

    def advance(self, speaker: Role, message: Message | InvalidSubmit) -> None:
        """Takes a message that is no frame, sent or received, or refuses it and changes nothing.

        Args:
            speaker: Who said it.
            message: What.

        Raises:
            LocalProtocolError: This end sent what it may not.
            RemoteProtocolError: The other end did; the caller calls `fail`.
        """
        state = self._next_connection_state(_kind(message), speaker)
        step = self._STEPS.get(type(message))
        if step is not None:
            step(self, message, speaker)
        self.connection = state

    def advance_frames(
        self, speaker: Role, frames: Sequence[Frame | CodedDelta], text_bytes: Sequence[int]
    ) -> None:
        """Takes the frames of one envelope, sent or received, all of them or none.

        Args:
            speaker: Who sent them.
            frames: One or more, of any streams.
            text_bytes: UTF-8 bytes of the text of each; 0 for any but a DELTA.

        Raises:
            LocalProtocolError: This end sent what it may not.
            RemoteProtocolError: The other end did; the caller calls `fail`.
        """
        changed: dict[int, StreamProgress] = {}
        for frame, size in zip(frames, text_bytes, strict=True):
            progress = changed.get(frame.stream_id) or self._streams.get(frame.stream_id)
            changed[frame.stream_id] = self._behind(speaker, frame, size, progress)
        for stream_id, progress in changed.items():
            self._move(stream_id, progress)

    def advance_frame(self, speaker: Role, frame: Frame | CodedDelta, text_bytes: int) -> None:
        """Takes one frame; otherwise as `advance_frames`."""
        stream_id = frame.stream_id
        self._move(stream_id, self._behind(speaker, frame, text_bytes, self._streams.get(stream_id)))

    def _behind(
        self, speaker: Role, frame: Frame | CodedDelta, size: int, progress: StreamProgress | None
    ) -> StreamProgress:
        """Returns where a stream is behind this frame; checks it and changes nothing."""
        kind = _kind(frame)
        self._next_connection_state(kind, speaker)  # no frame changes it
        stream_id = frame.stream_id
        state = self._state_of(stream_id) if progress is None else progress.state
        following = STREAM_TABLE.get((state, kind))
        if progress is None or following is None or (progress.asked_again and not progress.settled):
            reason = f"a frame of stream {stream_id}, which {self._absence(stream_id)}"
            raise self._fault(speaker, reason)
        cursor = progress.cursor
        if not progress.settled:
            cursor = evolve(cursor, applied_bytes=frame.offset)
        if cursor.judge(frame) is not Verdict.APPLY or frame.epoch != self._epoch:
            raise self._fault(speaker, cursor.misfit(frame, stream_id))
        settled = kind in (Delta, Flush)  # nothing follows the others
        # Written out: `evolve` takes longer than all the rest of this, for each frame.
        return StreamProgress(
            following, cursor.after(frame, size), settled, progress.replayable, progress.resume_from
        )

    def _move(self, stream_id: int, progress: StreamProgress) -> None:
        if progress.state is StreamState.AWAY:
            del self._streams[stream_id]
            self._leave(stream_id, progress.cursor)
        else:
            self._streams[stream_id] = progress

    # ---- steps; each checks before it changes

    def _hello(self, message: Hello, _speaker: Role) -> None:
        self._asked_session = message.session_id

    def _welcome(self, message: Welcome, speaker: Role) -> None:
        if message.session_present and message.session_id != self._asked_session:
            raise self._fault(speaker, "Welcome to a session that Hello did not name")
        self._epoch = message.epoch
        self._sequence_ids.begin(message.last_sequence_id, repeats=message.session_present)

    def _submit(self, message: Submit | InvalidSubmit, speaker: Role) -> None:
        self._check_sequence(message.sequence_id, speaker)
        self._check_flood(speaker)
        self._sequence_ids.count_submit(message.sequence_id)

    def _event(self, message: Event, speaker: Role) -> None:
        self._check_sequence(message.sequence_id, speaker)
        self._check_flood(speaker)
        self._sequence_ids.count_event(message.sequence_id)

    def _checkpoint(self, message: Checkpoint, _speaker: Role) -> None:
        self._sequence_ids.cover(message.sequence_id)

    def _told(self, message: Flow | Status, speaker: Role) -> None:
        self._check_stream(message.stream_id, type(message), speaker)

    def _cancel(self, message: Cancel, speaker: Role) -> None:
        self._check_sequence(message.sequence_id, speaker)
        self._check_stream(message.stream_id, Cancel, speaker)
        self._sequence_ids.count(message.sequence_id)

    def _ack(self, message: Ack, speaker: Role) -> None:
        for stream_id, frame_id in message.processed:
            self._check_stream(stream_id, Ack, speaker)
            self._check_processed(stream_id, frame_id, speaker)

    def _refused(self, message: Refused, speaker: Role) -> None:
        self._check_pending(message.sequence_id, Refused, speaker)
        self._sequence_ids.answer(message.sequence_id)

    def _accepted(self, message: Accepted, speaker: Role) -> None:
        stream_id = message.stream_id
        self._check_pending(message.sequence_id, Accepted, speaker)
        if not message.replayed:
            if stream_id <= self._highest_stream_id:
                reason = f"stream id {stream_id} after {self._highest_stream_id}: they rise"
                raise self._fault(speaker, reason)
            if speaker is self._role and len(self._streams) >= self._max_streams:
                raise self._fault(speaker, f"more than {self._max_streams} streams")
            accepted = STREAM_TABLE[StreamState.SUBMITTED, Accepted]
            replayable = message.durability is not Durability.NONE
            self._streams[stream_id] = StreamProgress(
                accepted, ReceiveCursor(self._epoch), replayable=replayable
            )
        self._sequence_ids.answer(message.sequence_id)
        self.know_streams(stream_id)

    def _resume(self, message: Resume, speaker: Role) -> None:
        stream_id, after = message.stream_id, message.last_processed_id
        state = self._check_stream(stream_id, Resume, speaker)
        progress = self._streams.get(stream_id)
        if progress is None and len(self._streams) >= MAX_PENDING:
            raise self._fault(speaker, f"more than {MAX_PENDING} streams", CloseCode.QUOTA_EXCEEDED)
        cursor = self.position(stream_id) or ReceiveCursor(self._epoch)
        if self._role is Role.CLIENT and cursor.applied != after:
            raise self._fault(speaker, f"Resume after frame {after}, where {cursor.applied} was the last")
        settled = progress is not None and progress.settled  # then frames may still cross
        self._away.pop(stream_id, None)
        self._streams[stream_id] = StreamProgress(state, cursor, settled, replayable=True, resume_from=after)

    def _resumed(self, message: Resumed, speaker: Role) -> None:
        stream_id = message.stream_id
        state = self._check_stream(stream_id, Resumed, speaker)
        progress = self._streams[stream_id]
        after = progress.resume_from
        if (message.next_id, message.epoch) != (after + 1, self._epoch):
            reason = f"Resumed at frame {message.next_id} of epoch {message.epoch}"
            raise self._fault(speaker, f"{reason}, not at {after + 1} of epoch {self._epoch}")
        knows_offset = self._role is Role.CLIENT or not after
        offset = progress.cursor.applied_bytes if self._role is Role.CLIENT else 0
        cursor = ReceiveCursor(self._epoch, after, offset)
        self._streams[stream_id] = StreamProgress(state, cursor, knows_offset, replayable=True)
        self.know_streams(stream_id)

    def _rejected(self, message: ResumeRejected, speaker: Role) -> None:
        self._check_stream(message.stream_id, ResumeRejected, speaker)
        del self._streams[message.stream_id]

    _STEPS: ClassVar[Mapping[type, Callable[..., None]]] = {
        Accepted: _accepted,
        Ack: _ack,
        Cancel: _cancel,
        Checkpoint: _checkpoint,
        Event: _event,
        Flow: _told,
        Hello: _hello,
        InvalidSubmit: _submit,
        Refused: _refused,
        Resume: _resume,
        ResumeRejected: _rejected,
        Resumed: _resumed,
        Status: _told,
        Submit: _submit,
        Welcome: _welcome,
    }

    def _leave(self, stream_id: int, cursor: ReceiveCursor) -> None:
        self._away[stream_id] = cursor
        if len(self._away) > REMEMBERED_STREAMS:
            self._away.popitem(last=False)

    # ---- checks; none changes anything

    def _next_connection_state(self, kind: Kind, speaker: Role) -> ConnectionState:
        if kind not in (CLIENT_KINDS if speaker is Role.CLIENT else SERVER_KINDS):
            raise self._fault(speaker, f"{kind.__name__} is not for the {speaker.value} to say")
        state = CONNECTION_TABLE.get((self.connection, kind))
        if state is None and speaker is not self._role:
            state = CROSSINGS.get((self.connection, kind))
        if state is None:
            reason = (
                f"{kind.__name__} is not allowed from the {speaker.value} in state {self.connection.value}"
            )
            raise self._fault(speaker, reason)
        return state

    def _state_of(self, stream_id: int) -> StreamState:
        progress = self._streams.get(stream_id)
        if progress is not None:
            return progress.state
        return StreamState.AWAY if stream_id <= self._highest_stream_id else StreamState.IDLE

    def _absence(self, stream_id: int) -> str:
        if self._state_of(stream_id) is StreamState.AWAY:
            return "has ended, or was not resumed here"
        return "never began"

    def _check_stream(self, stream_id: int, kind: Kind, speaker: Role) -> StreamState:
        state = self._state_of(stream_id)
        following = STREAM_TABLE.get((state, kind))
        if following is None:
            raise self._fault(speaker, f"{kind.__name__} for stream {stream_id}, which is {state.value}")
        return following

    def _check_pending(self, sequence_id: int, kind: Kind, speaker: Role) -> None:
        if not self._sequence_ids.waits(sequence_id, event=kind is Refused):
            raise self._fault(speaker, f"{kind.__name__} for {sequence_id}, which is not unanswered")

    def _check_sequence(self, sequence_id: int, speaker: Role) -> None:
        fault = self._sequence_ids.fault(sequence_id)
        if fault is not None:
            raise self._fault(speaker, fault)

    def _check_flood(self, speaker: Role) -> None:
        flood = self._sequence_ids.flood()
        if flood is not None:
            raise self._fault(speaker, flood, CloseCode.QUOTA_EXCEEDED)

    def _check_processed(self, stream_id: int, frame_id: int, speaker: Role) -> None:
        progress = self._streams.get(stream_id)
        position = self.position(stream_id)
        last = None if position is None else position.applied
        if progress is not None and not progress.settled:
            last = max(progress.cursor.applied, progress.resume_from)
        if last is not None and frame_id > last:
            raise self._fault(speaker, f"Ack of frame {frame_id} of stream {stream_id}, whose last is {last}")

    def _fault(
        self, speaker: Role, reason: str, close_code: CloseCode = CloseCode.BAD_MESSAGE
    ) -> LocalProtocolError | RemoteProtocolError:
        if speaker is self._role:
            return LocalProtocolError(reason)
        return RemoteProtocolError(reason, close_code)


def _kind(message: Message | CodedDelta | InvalidSubmit) -> Kind:
    match message:
        case Flush() if message.final is not None:
            return Final
        case InvalidSubmit():
            return Submit
        case CodedDelta():
            return Delta
    return type(message)
