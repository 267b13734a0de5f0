"""A server without a clock, a model or a disk: what a client of seedance.v1 may meet, for tests of clients.

It keeps every session and every frame until it is told to forget, does one thing at a time when it is told
to, and speaks through a `Connection`, so whatever it says is legal and whatever the client says is checked.
"""

from __future__ import annotations

import hashlib

from attrs import define, field

from seedance_wire.capabilities import agreed_capabilities
from seedance_wire.connection import Connection
from seedance_wire.messages import (
    Accepted,
    Ack,
    AckLevel,
    Cancel,
    Checkpoint,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Event,
    Final,
    FinishReason,
    Flush,
    Frame,
    GoAway,
    Hello,
    Limits,
    Refused,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    StageTiming,
    StreamCheckpoint,
    Submit,
    Usage,
    UserEvent,
    Welcome,
)
from seedance_wire.state import Role
from seedance_wire.stored_form import dump_frame, load_frame, request_fingerprint

__all__ = ["LIMITS", "ModelServer", "ModelSession", "ModelStream"]

LIMITS = Limits(max_message_bytes=262_144, max_streams=64, max_context_tokens=1000)


@define(eq=False)
class ModelStream:
    """A stream as a journal has it: stored frames, and what they add up to."""

    stream_id: int
    submit: Submit
    durability: Durability
    frames: list[bytes] = field(factory=list)
    text: str = ""
    ended: bool = False
    first_available_id: int = 1
    cancels: int = 0

    @property
    def last_id(self) -> int:
        """The last frame."""
        return len(self.frames)

    def text_to(self, frame_id: int) -> str:
        """The text up to the end of a frame."""
        frames = (load_frame(stored, epoch=1) for stored in self.frames[:frame_id])
        return "".join(frame.text for frame in frames if isinstance(frame, Delta))

    def digest_to(self, frame_id: int) -> bytes:
        """The digest prefix of the text up to the end of a frame."""
        return hashlib.sha256(self.text_to(frame_id).encode()).digest()[:16]

    def generate(self, text: str) -> None:
        """Adds a DELTA."""
        self._add(Delta(**self._numbering(), text=text))
        self.text += text

    def flush(self) -> None:
        """Adds a FLUSH in the middle."""
        self._add(Flush(**self._numbering()))

    def finish(self, reason: FinishReason = FinishReason.STOP) -> None:
        """Adds the end."""
        final = Final(
            finish_reason=reason,
            usage=Usage(prompt_tokens=1, completion_tokens=len(self.frames)),
            timing=StageTiming(),
            digest=hashlib.sha256(self.text.encode()).digest(),
        )
        self._add(Flush(**self._numbering(), final=final))
        self.ended = True

    def fail(self) -> None:
        """Adds an end in failure."""
        self._add(Error(**self._numbering(), code=ErrorCode.INTERNAL, message="m"))
        self.ended = True

    def _numbering(self) -> dict[str, int]:
        offset = len(self.text.encode())
        return {"stream_id": self.stream_id, "id": len(self.frames) + 1, "epoch": 1, "offset": offset}

    def _add(self, frame: Frame) -> None:
        assert not self.ended
        self.frames.append(dump_frame(frame))


@define(eq=False)
class ModelSession:
    """A session as a journal has it."""

    session_id: str
    epoch: int = 0
    streams: dict[int, ModelStream] = field(factory=dict)
    by_key: dict[bytes, ModelStream] = field(factory=dict)
    processed: set[int] = field(factory=set)
    batches: dict[int, tuple[UserEvent, ...]] = field(factory=dict)
    next_stream_id: int = 1

    @property
    def last_sequence_id(self) -> int:
        """All of the client's messages up to this were processed."""
        last = 0
        while last + 1 in self.processed:
            last += 1
        return last


class ModelServer:
    """One server, to which one client at a time is connected.

    ``out`` holds the WebSocket messages that it sent and nobody fetched yet.
    """

    def __init__(self, subprotocol: str = "seedance.v1") -> None:
        self.subprotocol = subprotocol
        self.sessions: dict[str, ModelSession] = {}
        self.session: ModelSession | None = None
        self.connection: Connection | None = None
        self.waiting: list[Submit] = []  # not answered on this connection
        self.out: list[bytes | str] = []
        self.acked: dict[int, int] = {}
        self.generations: dict[bytes, int] = {}  # how many streams each key began
        self._sending: dict[int, int] = {}  # next frame of each stream that is attached
        self._names = 0
        self.takes_events = True

    # ---- connections

    def open(self) -> None:
        """A new connection comes; the one before is cut."""
        self.cut()
        self.connection = Connection(Role.SERVER, self.subprotocol)

    def cut(self) -> None:
        """The connection is gone. What is not durable goes with it."""
        self.connection = None
        self.waiting.clear()
        self.out.clear()
        self._sending.clear()
        if self.session is not None:
            for stream in list(self.session.streams.values()):
                if stream.durability is Durability.NONE:
                    del self.session.streams[stream.stream_id]
        self.session = None

    def receive(self, payload: bytes | str) -> None:
        """Takes a message of the client's; SUBMITs wait for `answer`, the rest is done at once."""
        assert self.connection is not None
        self.connection.receive_data(payload)
        while (event := self.connection.next_event()) is not None:
            match event:
                case Hello():
                    self._hello(event)
                case Submit():
                    self.waiting.append(event)
                case Cancel():
                    self._cancel(event)
                case Resume():
                    self._resume(event)
                case Event():
                    self._event(event)
                case Ack():
                    self.acked.update(event.processed)

    def forget_sessions(self) -> None:
        """Everything that was kept is lost, as by a restart without a journal."""
        self.sessions.clear()
        self.cut()

    # ---- what it may do while there is a connection

    def answer(self, submit: Submit) -> ModelStream:
        """Accepts a SUBMIT that waits."""
        assert self.session is not None
        self.waiting.remove(submit)
        stream = self.session.by_key.get(submit.idempotency_key)
        replayed = stream is not None
        if stream is None:
            stream = ModelStream(
                self.session.next_stream_id, submit, submit.durability or Durability.COMMITTED
            )
            self.session.next_stream_id += 1
            self.session.by_key[submit.idempotency_key] = self.session.streams[stream.stream_id] = stream
            self.generations[submit.idempotency_key] = self.generations.get(submit.idempotency_key, 0) + 1
            self._sending[stream.stream_id] = 1
        assert request_fingerprint(stream.submit) == request_fingerprint(submit)
        self.session.processed.add(submit.sequence_id)
        self._send(
            Accepted(
                sequence_id=submit.sequence_id,
                stream_id=stream.stream_id,
                durability=stream.durability,
                replayed=replayed,
                first_available_id=stream.first_available_id,
                last_id=stream.last_id,
            )
        )
        return stream

    def refuse(self, submit: Submit) -> None:
        """Refuses a SUBMIT that waits and was not accepted before."""
        assert self.session is not None
        self.waiting.remove(submit)
        self.session.processed.add(submit.sequence_id)
        code = ErrorCode.OVERLOADED
        self._send(Refused(sequence_id=submit.sequence_id, code=code, message="m", retryable=True))

    def send_frames(self, stream: ModelStream, limit: int = 1000) -> None:
        """Sends the next frames of a stream in one envelope, if it is attached and there are any."""
        first = self._sending.get(stream.stream_id)
        if first is None or self.session is None:
            return
        stored = stream.frames[first - 1 : first - 1 + limit]
        if stored:
            self._send(*(load_frame(one, epoch=self.session.epoch) for one in stored))
            self._sending[stream.stream_id] = first + len(stored)

    def sends(self, stream: ModelStream) -> bool:
        """Whether the stream's frames go to the connection that there is."""
        return stream.stream_id in self._sending

    def checkpoint(self) -> None:
        """Says what is safe: everything."""
        assert self.session is not None
        streams = tuple(
            StreamCheckpoint(stream_id=s.stream_id, frame_id=s.last_id, digest=s.digest_to(s.last_id))
            for s in self.session.streams.values()
            if s.frames
        )
        self._send(
            Checkpoint(
                sequence_id=self.session.last_sequence_id,
                timestamp_ms=0,
                ack_level=AckLevel.COMMITTED,
                streams=streams,
            )
        )

    def go_away(self) -> None:
        """Says that it will close."""
        self._send(GoAway(reason="restart"))

    # ---- messages

    def _hello(self, hello: Hello) -> None:
        assert self.connection is not None
        session = self.sessions.get(hello.session_id or "")
        present = session is not None and hello.resume_token == b"token of " + session.session_id.encode()
        if session is None or not present:
            self._names += 1
            session = self.sessions[f"s-{self._names}"] = ModelSession(f"s-{self._names}")
        session.epoch += 1
        self.session = session
        if present:
            self.connection.know_streams(session.next_stream_id - 1)
        self._send(
            Welcome(
                session_id=session.session_id,
                epoch=session.epoch,
                last_sequence_id=session.last_sequence_id,
                model="m",
                limits=LIMITS,
                capabilities=agreed_capabilities(hello.capabilities, self.connection.capabilities),
                resume_token=b"token of " + session.session_id.encode(),
                session_present=present,
            )
        )

    def _event(self, event: Event) -> None:
        assert self.session is not None
        self.session.processed.add(event.sequence_id)
        if self.takes_events:
            assert self.session.batches.setdefault(event.batch_id, event.events) == event.events
        else:
            code = ErrorCode.OVERLOADED
            self._send(Refused(sequence_id=event.sequence_id, code=code, message="m", retryable=True))

    def _cancel(self, cancel: Cancel) -> None:
        assert self.session is not None
        self.session.processed.add(cancel.sequence_id)
        stream = self.session.streams.get(cancel.stream_id)
        if stream is not None:
            stream.cancels += 1
            if not stream.ended:
                stream.finish(FinishReason.CANCELLED)

    def _resume(self, resume: Resume) -> None:
        assert self.session is not None
        stream = self.session.streams.get(resume.stream_id)
        failure = self._failure(resume, stream)
        self._sending.pop(resume.stream_id, None)
        if failure is not None or stream is None:
            code = failure or ResumeFailure.NOT_FOUND
            first, last = (1, 0) if stream is None else (stream.first_available_id, stream.last_id)
            self._send(
                ResumeRejected(stream_id=resume.stream_id, code=code, first_available_id=first, last_id=last)
            )
            return
        self._send(
            Resumed(
                stream_id=resume.stream_id,
                next_id=resume.last_processed_id + 1,
                epoch=self.session.epoch,
                first_available_id=stream.first_available_id,
                last_id=stream.last_id,
                live=not stream.ended,
            )
        )
        self._sending[resume.stream_id] = resume.last_processed_id + 1

    def _failure(self, resume: Resume, stream: ModelStream | None) -> ResumeFailure | None:
        after = resume.last_processed_id
        if stream is None:
            return ResumeFailure.NOT_FOUND
        if after > stream.last_id:
            return ResumeFailure.CURSOR_AHEAD
        if after + 1 < stream.first_available_id:
            return ResumeFailure.TRUNCATED
        if resume.digest is not None and resume.digest != stream.digest_to(after):
            return ResumeFailure.DIVERGED
        return None

    def _send(self, *messages: object) -> None:
        assert self.connection is not None
        self.out.append(self.connection.send(*messages))  # type: ignore[arg-type]
