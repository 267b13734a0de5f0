"""The receiving half of one generation: what has arrived and was not taken yet.

Sits between the session, which delivers frames and must never wait, and the one or more readers of a stream.
The buffer is as large as the protocol's window and no larger: a server that sends more breaks the protocol.
An id is acknowledged when a reader takes the frame, never on arrival, and what was taken is what a bookmark
names. It outlives connections. Must not know of transports, encodings or time-outs.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from seedance_sdk.answer_times import AnswerTimes
from seedance_sdk.arrivals import Arrivals
from seedance_sdk.causes import error_of_wire
from seedance_sdk.completion import Chunk, FinishReason
from seedance_sdk.errors import ClientClosed, ProtocolError, SeedanceError, StreamClosed, Unsupported
from seedance_sdk.latency_series import Outcome
from seedance_sdk.limits import Limits
from seedance_sdk.parameters import Request, ResumeRequest
from seedance_sdk.patience import Patience
from seedance_sdk.stream_events import Reconnected, StreamEvents
from seedance_wire.bookmark import Bookmark
from seedance_wire.messages import Delta, Error, Flush, Frame
from seedance_wire.running_digest import RunningDigest

__all__ = ["Generation", "GenerationOwner"]


class GenerationOwner(Protocol):
    """What a generation asks of its session; neither call waits."""

    def request_cancel(self, generation: Generation) -> None:
        """Has CANCEL sent, unless the generation has ended."""

    def note_processed(self, stream_id: int, frame_id: int) -> None:
        """Has an ACK sent, soon."""

    def make_bookmark(
        self, stream_id: int, *, last_processed_id: int, offset: int, digest: RunningDigest
    ) -> Bookmark:
        """Names a place in a stream for another client.

        Raises:
            Unsupported: The session is none that a client can come back to.
        """


class Generation:
    """One request from the moment it is handed to a session until its last frame is taken.

    Everything but `receive` is synchronous, and all of it runs in the session's trio loop.

    Args:
        request: What was asked.
        deadline: When the answer is of no use any more, on trio's clock; infinite for never.
        owner: The session.
        limits: Bounds of the buffer.
        clock: Seconds on a clock that does not go back; stamps arrivals.
        times: Hears of what arrives, and of the end.
        patience: Ends a `receive` that takes too long.

    Attributes:
        answered: Set when the request was accepted or refused, or the session ended.
        stream_id: The server's number for the stream, 0 before it is accepted.
        session_id: The session that the stream belongs to, "" before it is accepted.
        ended: Whether nothing more will arrive.
        discarding: Whether its reader has left.
        detached: Whether it left without cancelling.
        sent: Whether SUBMIT was sent for it.
        cancel_requested: Whether its session has been asked for a CANCEL.
        reconnects: How many times the connection was restored under it.
        events: What happens beside the text.
        times: As given.
    """

    def __init__(
        self,
        request: Request | ResumeRequest,
        deadline: float,
        owner: GenerationOwner,
        limits: Limits,
        clock: Callable[[], float],
        times: AnswerTimes,
        patience: Patience,
    ) -> None:
        self.request = request
        self.times = times
        self.deadline = deadline
        self.answered = trio.Event()
        self.stream_id = 0
        self.session_id = ""
        self.ended = False
        self.discarding = False
        self.detached = False
        self.sent = False
        self.cancel_requested = False
        self.reconnects = 0
        self.events = StreamEvents()
        self._kept = False
        # What readers have taken: up to this frame and byte, with the digest of the text from its very start.
        self._taken_id = 0
        self._taken_bytes = 0
        self._digest = RunningDigest()
        if isinstance(request, ResumeRequest):
            self._taken_id = request.bookmark.last_processed_id
            self._taken_bytes = request.bookmark.offset
            if self._taken_bytes:  # its beginning went to another reader
                self._digest = RunningDigest.of_unseen(request.bookmark.digest16)
        # The last piece given out counts once the next is asked for: until then it can be put back.
        self._given: Chunk | None = None
        self._returned: deque[Chunk] = deque()
        self._owner = owner
        self._limits = limits
        self._clock = clock
        self._error: SeedanceError | None = None
        self._left: SeedanceError = StreamClosed("the stream was closed by its reader")
        # Frames, their bytes of text, when they came. `deliver` counts: a window for each connection.
        self._arrivals: Arrivals[tuple[Frame, int, float]] = Arrivals(patience)
        self._last_id = self._carried_id = 0  # frames up to this came on earlier connections
        self._buffered_frames = self._buffered_bytes = 0  # of the present connection

    @property
    def deadline_ms(self) -> int | None:
        """What is left until the deadline, in milliseconds, at least 1; None where there is none."""
        if math.isinf(self.deadline):
            return None
        return max(1, round(1000 * (self.deadline - trio.current_time())))

    @property
    def taken_id(self) -> int:
        """Id of the last frame that a reader took; 0 before the first."""
        return max(self._taken_id, self._given.id) if self._given else self._taken_id

    @property
    def taken_bytes(self) -> int:
        """UTF-8 bytes of the answer up to there."""
        return self._taken_bytes + (len(self._given.delta.encode()) if self._given else 0)

    @property
    def bookmark(self) -> Bookmark:
        """Where its readers are.

        Raises:
            Unsupported: The server does not keep this stream.
        """
        if not self._kept:
            raise Unsupported("the server does not keep this stream, so nobody can go on with it")
        digest = self._digest
        if self._given is not None:
            digest = digest.copy()
            digest.update(self._given.delta.encode())
        return self._owner.make_bookmark(
            self.stream_id, last_processed_id=self.taken_id, offset=self.taken_bytes, digest=digest
        )

    # ---- the session's side

    def accept(self, stream_id: int, session_id: str, *, kept: bool) -> None:
        """The server answers on this stream.

        Args:
            stream_id: Its number.
            session_id: In this session.
            kept: Whether another reader may go on with it.
        """
        self.stream_id = stream_id
        self.session_id = session_id
        self._kept = kept
        self.answered.set()
        if self.discarding:
            self._owner.request_cancel(self)

    def deliver(self, frame: Frame) -> None:
        """Stores the next frame for its reader, or acknowledges it where the reader has left.

        Raises:
            ProtocolError: The server sent more than the window allows, or more than an answer may hold.
        """
        last = isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None)
        if self.discarding:
            if not self.detached:
                self._owner.note_processed(self.stream_id, frame.id)
            if last:
                self._end()
            return
        size_bytes = _text_bytes(frame)
        if frame.offset + size_bytes > self._limits.max_response_bytes:
            raise ProtocolError(f"an answer has more than {self._limits.max_response_bytes} bytes")
        self._buffered_bytes += size_bytes
        self._buffered_frames += 1
        if self._buffered_bytes > self._limits.max_buffered_bytes:
            raise ProtocolError(f"the server sent more than the window holds: {self._buffered_bytes} bytes")
        if self._buffered_frames > self._limits.max_buffered_frames:
            frames = self._limits.max_buffered_frames
            raise ProtocolError(f"the server sent more than the window holds: over {frames} frames")
        self._last_id = frame.id
        now = self._clock()
        self._arrivals.put((frame, size_bytes, now))
        if isinstance(frame, Delta):
            self.times.arrived(frame.id, frame.token_count, now)
        if last:
            self.times.ended(_outcome(frame))
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._arrivals.end()
        self.events.close()

    def note_reconnect(self, outage_s: float) -> None:
        """Another connection goes on with it: the server's window is a new one, behind what has arrived."""
        self.reconnects += 1
        self.events.add(Reconnected(reconnects=self.reconnects, outage_s=outage_s))
        self._carried_id = self._last_id
        self._buffered_frames = self._buffered_bytes = 0

    def fail(self, error: SeedanceError) -> None:
        """Ends it without a last frame; readers first get what has arrived. The first error counts."""
        if self._error is None and not self.ended:
            self._error = error
        self.times.ended(Outcome.CANCELLED if isinstance(error, ClientClosed) else Outcome.FAILED)
        self._end()
        self.answered.set()

    # ---- the reader's side

    def raise_if_refused(self) -> None:
        """Raises the error that ended the generation before its stream began, if one did."""
        if self._error is not None and not self.stream_id:
            raise copy.copy(self._error) from self._error

    async def receive(self, until: float = math.inf) -> Chunk | None:
        """Takes the next piece; None after the last one. Cancellation loses nothing.

        Args:
            until: How long to wait, on trio's clock.

        Raises:
            trio.TooSlowError: Nothing came by then.
            SeedanceError: The stream failed; everything that arrived before has been taken. Raised each time.
        """
        while not self.discarding:
            if self._returned:
                return self._give(self._returned.popleft())
            try:
                frame, size_bytes, received_at = await self._arrivals.take(until)
            except trio.EndOfChannel:
                if self._returned:
                    continue
                if self._error is None:
                    return None
                raise copy.copy(self._error) from self._error
            except trio.ClosedResourceError:
                break  # abandoned while this reader waited
            self._make_room(frame, size_bytes)
            self._owner.note_processed(self.stream_id, frame.id)
            if isinstance(frame, Delta) or (isinstance(frame, Flush) and frame.final is not None):
                return self._give(_chunk(frame, received_at))
            self._settle()
            self._taken_id = frame.id
            if isinstance(frame, Error):
                self._error = error_of_wire(frame)
        raise copy.copy(self._left)

    def put_back(self, chunk: Chunk) -> None:
        """Undoes a `receive` whose caller never got the piece: the next one gives it out again."""
        self._returned.append(chunk)
        if self._given is chunk:
            self._given = None

    def _give(self, chunk: Chunk) -> Chunk:
        self._settle()
        self._given = chunk
        return chunk

    def _settle(self) -> None:
        """The piece given out last is its reader's for good."""
        given, self._given = self._given, None
        if given is not None and given.id > self._taken_id:  # else another reader has had a later one
            text = given.delta.encode()
            self._taken_id = given.id
            self._taken_bytes += len(text)
            self._digest.update(text)

    def _make_room(self, frame: Frame, size_bytes: int) -> None:
        if frame.id > self._carried_id:
            self._buffered_bytes -= size_bytes
            self._buffered_frames -= 1

    def cancel(self) -> None:
        """Asks the server to end it; what arrives until then, and the last frame, can still be taken."""
        if not self.ended:
            self._owner.request_cancel(self)

    def detach(self) -> None:
        """Its reader has left, and another will come: nothing is cancelled, nor acknowledged any more."""
        if not self.discarding:
            self.discarding = self.detached = True
            self.times.ended(None)
            self._arrivals.close()

    def abandon(self, reason: SeedanceError | None = None) -> None:
        """Its reader has left: cancels, drops what is buffered, and acknowledges what still comes.

        Args:
            reason: What to raise if the stream is read again; `StreamClosed` by default.
        """
        if self.discarding:
            return
        self.discarding = True
        self.times.ended(Outcome.CANCELLED if reason is None else Outcome.FAILED)
        self._left = reason or self._left
        buffered = self._arrivals.close()
        if buffered:
            last, _, _ = buffered[-1]
            self._owner.note_processed(self.stream_id, last.id)
        self.cancel()


def _outcome(last: Frame) -> Outcome:
    if isinstance(last, Flush) and last.final is not None:
        return Outcome.CANCELLED if last.final.finish_reason.value == "cancelled" else Outcome.FINISHED
    return Outcome.FAILED


def _text_bytes(frame: Frame) -> int:
    if not isinstance(frame, Delta):
        return 0
    return len(frame.text) if frame.text.isascii() else len(frame.text.encode())


def _chunk(frame: Delta | Flush, received_at: float) -> Chunk:
    if isinstance(frame, Delta):
        return Chunk(
            delta=frame.text,
            id=frame.id,
            offset=frame.offset,
            token_count=frame.token_count,
            received_at=received_at,
            logprobs=frame.logprobs,
        )
    final = frame.final
    assert final is not None  # noqa: S101 - its only caller has looked
    reason: FinishReason = final.finish_reason.value
    return Chunk(
        delta="",
        id=frame.id,
        offset=frame.offset,
        token_count=0,
        received_at=received_at,
        finish_reason=reason,
        stop=final.stop,
        usage=final.usage,
        timing=final.timing,
    )
