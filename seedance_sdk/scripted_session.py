"""What a scripted server keeps while its clients come and go: sessions, streams, and every frame of them.

A stream goes on while somebody receives it, from the frame after the last one that was made. Frames are made
once and sent as often as they are asked for, so a client that resumes gets the same ones. Must not know of
connections; see `scripted_peer`.
"""

from __future__ import annotations

import hashlib

import trio
from attrs import evolve, field, frozen

from seedance_sdk.script import Answer, Cut
from seedance_wire.messages import (
    Accepted,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flow,
    Flush,
    Frame,
    Refused,
    StageTiming,
    Status,
    Usage,
)

__all__ = ["ScriptedSession", "ScriptedStream"]

_PASSING = frozenset(
    {ErrorCode.DRAINING, ErrorCode.ENGINE_FAILED, ErrorCode.JOURNAL_FULL, ErrorCode.OVERLOADED}
)
"""Failures that the real server calls retryable."""


@frozen(eq=False, kw_only=True)
class ScriptedSession:
    """One session.

    Attributes:
        id: What WELCOME calls it.
        resume_token: What shows that a client may come back to it.
        streams: By number.
        answers: What was said to each request, by its key.
        batches: Reported events that it has, by the client's numbers of them.
    """

    id: str
    resume_token: bytes
    streams: dict[int, ScriptedStream] = field(factory=dict)
    answers: dict[bytes, Accepted | Refused] = field(factory=dict)
    batches: set[int] = field(factory=set)
    _state: dict[str, int] = field(factory=lambda: {"epoch": 0, "last_sequence_id": 0, "last_stream_id": 0})

    @property
    def epoch(self) -> int:
        """How many times it was attached to."""
        return self._state["epoch"]

    @property
    def last_sequence_id(self) -> int:
        """The highest message of its client's that it has."""
        return self._state["last_sequence_id"]

    def attach(self) -> None:
        """A client is here."""
        self._state["epoch"] += 1

    def note_sequence(self, sequence_id: int) -> None:
        """Keeps a message of the client's."""
        self._state["last_sequence_id"] = max(self.last_sequence_id, sequence_id)

    def begin(self, answer: Answer, durability: Durability) -> ScriptedStream:
        """Starts a stream, under the next number."""
        return self._take(ScriptedStream(0, answer, durability))

    def take_along(self, other: ScriptedSession, key: bytes) -> Accepted | None:
        """Takes the stream of another session's request, to go on here under a new number."""
        said = other.answers.get(key)
        stream = other.streams.pop(said.stream_id, None) if isinstance(said, Accepted) else None
        if stream is None:
            return None
        del other.answers[key]
        return Accepted(
            sequence_id=0, stream_id=self._take(stream).id, durability=stream.durability, replayed=True
        )

    def _take(self, stream: ScriptedStream) -> ScriptedStream:
        self._state["last_stream_id"] += 1
        stream.id = self._state["last_stream_id"]
        self.streams[stream.id] = stream
        return stream


class ScriptedStream:
    """One answer on its way.

    Args:
        stream_id: Its number.
        answer: What it says.
        durability: Whether it survives its connection.

    Attributes:
        frames: All that were made, in epoch 1.
    """

    def __init__(self, stream_id: int, answer: Answer, durability: Durability) -> None:
        self.id = stream_id
        self.durability = durability
        self.frames: list[Frame] = []
        self._answer = answer
        self._next_piece = 0
        self._texts: list[bytes] = []
        self._offset = 0  # bytes of all of them
        self._cancelled = trio.Event()

    def has_ended(self) -> bool:
        """Whether its last frame was made."""
        last = self.frames[-1] if self.frames else None
        return isinstance(last, Error) or (isinstance(last, Flush) and last.final is not None)

    def digest(self, frame_id: int) -> bytes:
        """SHA-256 of the text up to a frame."""
        return hashlib.sha256(b"".join(self._texts[:frame_id])).digest()

    def frame(self, frame_id: int, epoch: int) -> Frame:
        """A frame, as whoever is attached in this epoch gets it."""
        return evolve(self.frames[frame_id - 1], epoch=epoch, stream_id=self.id)

    def cancel(self) -> None:
        """The client wants no more of it."""
        self._cancelled.set()

    async def advance(self) -> Cut | Flow | Status | None:
        """Makes the next frame, or says what happens here instead.

        If cancelled, nothing has happened.
        """
        pieces = self._answer.pieces
        piece = pieces[self._next_piece] if self._next_piece < len(pieces) else None
        with trio.move_on_after(
            float("inf") if piece is None and self._answer.endless else self._answer.delay_s
        ):
            await self._cancelled.wait()
        if self._cancelled.is_set():
            self._add(self._final(FinishReason.CANCELLED, None), b"")
            return None
        if piece is None:
            error = self._answer.error
            last = self._final(self._answer.finish_reason, self._answer.stop) if error is None else None
            self._add(last or self._error(error or ErrorCode.INTERNAL), b"")
            return None
        self._next_piece += 1
        if isinstance(piece, Cut):
            return piece
        if isinstance(piece, Status | Flow):
            return evolve(piece, stream_id=self.id)
        self._add(
            Delta(stream_id=self.id, id=self._next_id, epoch=1, offset=self._offset, text=piece),
            piece.encode(),
        )
        return None

    @property
    def _next_id(self) -> int:
        return len(self.frames) + 1

    def _add(self, frame: Frame, text: bytes) -> None:
        self.frames.append(frame)
        self._texts.append(text)
        self._offset += len(text)

    def _error(self, code: ErrorCode) -> Error:
        return Error(
            stream_id=self.id,
            id=self._next_id,
            epoch=1,
            offset=self._offset,
            code=code,
            message="failed by the script",
            retryable=code in _PASSING,
        )

    def _final(self, reason: FinishReason, stop: str | int | None) -> Flush:
        final = Final(
            finish_reason=reason,
            usage=Usage(prompt_tokens=1, completion_tokens=len(self.frames)),
            timing=StageTiming(),
            digest=self.digest(len(self.frames)),
            stop=stop,
        )
        return Flush(stream_id=self.id, id=self._next_id, epoch=1, offset=self._offset, final=final)
