"""One generation on its way to one client: outputs of the engine in, numbered frames out.

The rules kept here: ids count from 1 without a hole and offsets add up; nothing is sent while the window is
full; exactly one terminal frame, the last. A stream that waits (for the window, for room in the outbox) just
stops receiving, its buffer fills and the engine pauses it: that is all of the back-pressure. A stream that is
ended from outside (cancel, deadline, shutdown) drops what the client hasn't been sent, and only then may the
terminal frame pass a full window, or a client that no longer reads could never be told.

It must not know sockets, encodings or other streams.
"""

from __future__ import annotations

import hashlib

import structlog
import trio
from attrs import frozen

from seedance_server.admission import describe_failure
from seedance_server.engine.errors import EngineError
from seedance_server.engine.sequence import Finish, SequenceOutput
from seedance_server.engine.sequence import FinishReason as EngineFinishReason
from seedance_server.engine_loop import Generation
from seedance_server.errors import EngineStopped, OutboxClosed
from seedance_server.outbox import Outbox, frame_size
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import (
    Delta,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    Frame,
    StageTiming,
    TokenLogprob,
    Usage,
)
from seedance_wire.window import SlidingWindow

__all__ = ["Stream"]

_log = structlog.get_logger(__name__)

_REASONS = {
    EngineFinishReason.STOP: FinishReason.STOP,
    EngineFinishReason.LENGTH: FinishReason.LENGTH,
    EngineFinishReason.CANCELLED: FinishReason.CANCELLED,
}


@frozen
class _Failure:
    """Why a stream ends with an ERROR frame."""

    code: ErrorCode
    message: str
    retryable: bool


class Stream:
    """Sends one generation as frames.

    Args:
        stream_id: Its number in the session.
        generation: Where outputs come from; the stream closes it.
        outbox: Where frames go.
        epoch: Which owner of the session sends.
        segment_bytes: Text after which a non-final FLUSH commits the segment.
        deadline_s: Trio time after which the answer is of no use.
    """

    def __init__(
        self,
        stream_id: int,
        generation: Generation,
        outbox: Outbox,
        *,
        epoch: int,
        segment_bytes: int,
        deadline_s: float,
    ) -> None:
        self.id = stream_id
        self._generation = generation
        self._outbox = outbox
        self._epoch = epoch
        self._segment_bytes = segment_bytes
        self._deadline_s = deadline_s
        self._window = SlidingWindow()
        self._window_moved = trio.lowlevel.ParkingLot()
        self._next_id = 1
        self._last_windowed_id = 0
        self._offset = 0
        self._segment_start = 0
        self._digest = hashlib.sha256()
        self._held_tokens = 0
        self._held_logprobs: tuple[TokenLogprob, ...] = ()
        self._cancelled = False
        self._failure: _Failure | None = None
        self._egress_s: float | None = None
        self._first_written = trio.Event()

    @property
    def window_size(self) -> int:
        """Frames that may be unacknowledged just now."""
        return self._window.size

    @property
    def in_flight(self) -> int:
        """Frames sent and not acknowledged."""
        return self._window.in_flight

    # ---- told by the reader: never waits

    def acknowledge(self, frame_id: int, now_s: float) -> None:
        """The client has processed everything up to ``frame_id``.

        Raises:
            RemoteProtocolError: That frame was never sent.
        """
        if frame_id >= self._next_id:
            raise RemoteProtocolError(f"frame {frame_id} of stream {self.id} was acknowledged but never sent")
        # A terminal frame that passed a full window isn't the window's business.
        self._window.on_ack(min(frame_id, self._last_windowed_id), now_s)
        self._window_moved.unpark_all()

    def cancel(self) -> None:
        """The client doesn't want the rest; ends with reason ``cancelled``. Safe to repeat."""
        self._cancelled = True
        self._end()

    def fail(self, code: ErrorCode, message: str) -> None:
        """The server can't go on with it; ends with a retryable ERROR."""
        self._failure = self._failure or _Failure(code, message, retryable=True)
        self._end()

    def _end(self) -> None:
        self._generation.cancel()
        self._window_moved.unpark_all()

    @property
    def _is_ending(self) -> bool:
        return self._cancelled or self._failure is not None

    # ---- its own task

    async def run(self) -> None:
        """Sends until the terminal frame is in the outbox; returns early only if the connection closes."""
        try:
            with self._generation:
                terminal = await self._relay()
            out_of_turn = self._is_ending or isinstance(terminal, _Failure)
            if isinstance(terminal, Final):
                frame: Frame = Flush(
                    stream_id=self.id,
                    id=self._next_id,
                    epoch=self._epoch,
                    offset=self._offset,
                    final=terminal,
                )
            else:
                frame = Error(
                    stream_id=self.id,
                    id=self._next_id,
                    epoch=self._epoch,
                    offset=self._offset,
                    code=terminal.code,
                    message=terminal.message,
                    retryable=terminal.retryable,
                )
            if not await self._send(frame, windowed=not out_of_turn):
                await self._send(frame, windowed=False)  # ended while all that was left was to say so
        except OutboxClosed:
            return

    async def _relay(self) -> Final | _Failure:
        """Sends the text; returns how it ended. Nothing that goes wrong in here is anybody else's."""
        try:
            with trio.CancelScope(deadline=self._deadline_s):
                finish = await self._relay_text()
                if finish.error is not None and not self._is_ending:
                    return _Failure(*describe_failure(finish.error))
                return self._failure or await self._final(finish)
            return _Failure(ErrorCode.DEADLINE_EXCEEDED, "the request's deadline passed", retryable=False)
        except OutboxClosed:
            raise
        except (EngineError, EngineStopped) as error:
            return _Failure(*describe_failure(error))
        except Exception as error:  # noqa: BLE001 - contained: it is this stream's end and no other's
            _log.exception("stream failed", stream_id=self.id)
            return _Failure(*describe_failure(error))

    async def _relay_text(self) -> Finish:
        while True:
            output = await self._generation.receive()
            if not self._is_ending:
                await self._send_output(output)
            if output.finish is not None:
                return output.finish

    async def _send_output(self, output: SequenceOutput) -> None:
        self._held_tokens += len(output.token_ids)
        self._held_logprobs += tuple(
            TokenLogprob(token_id=entry.token_id, text=entry.text, logprob=entry.logprob, top=entry.top)
            for entry in output.logprobs
        )
        if not output.text and not (output.finish is not None and self._held_logprobs):
            return
        encoded = output.text.encode()
        if self._offset - self._segment_start >= self._segment_bytes:
            if not await self._send(
                Flush(stream_id=self.id, id=self._next_id, epoch=self._epoch, offset=self._offset)
            ):
                return
            self._segment_start = self._offset
        sent = await self._send(
            Delta(
                stream_id=self.id,
                id=self._next_id,
                epoch=self._epoch,
                offset=self._offset,
                text=output.text,
                token_count=self._held_tokens,
                logprobs=self._held_logprobs,
            )
        )
        if sent:
            self._offset += len(encoded)
            self._digest.update(encoded)
            self._held_tokens, self._held_logprobs = 0, ()

    async def _send(self, frame: Frame, *, windowed: bool = True) -> bool:
        """Puts the next frame into the outbox; False if the stream was ended while waiting for the window."""
        size = frame_size(frame)
        if windowed:
            while not self._window.can_send(size):
                if self._is_ending:
                    return False
                await self._window_moved.park()
        on_written = self._note_first_written if frame.id == 1 else None
        await self._outbox.put_frame(frame, on_written)
        # This runs before anything could be read that answers the frame: a send and a receive lie between.
        if windowed:
            self._window.on_sent(frame.id, size, trio.current_time())
            self._last_windowed_id = frame.id
        self._next_id = frame.id + 1
        return True

    def _note_first_written(self) -> None:
        if self._generation.first_output_s is not None:
            self._egress_s = trio.current_time() - self._generation.first_output_s
        self._first_written.set()

    async def _final(self, finish: Finish) -> Final:
        if self._next_id > 1:
            await self._first_written.wait()  # bounded: a send that takes too long ends the connection
        timing = finish.timing
        return Final(
            finish_reason=FinishReason.CANCELLED if self._cancelled else _REASONS[finish.reason],
            usage=Usage(
                prompt_tokens=finish.usage.prompt_tokens,
                completion_tokens=finish.usage.completion_tokens,
                cached_tokens=finish.usage.cached_tokens,
            ),
            timing=StageTiming(
                queue_ms=timing.queue_s * 1e3,
                preprocess_ms=timing.preprocess_s * 1e3,
                prefill_ms=timing.prefill_s * 1e3,
                first_decode_ms=timing.first_decode_s * 1e3,
                cache_sync_ms=timing.cache_sync_s * 1e3,
                egress_ms=(self._egress_s or 0.0) * 1e3,
            ),
            digest=self._digest.digest(),
            stop=None if self._cancelled else finish.stop,
        )
