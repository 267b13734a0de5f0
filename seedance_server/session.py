"""What one client has going on: its requests, its streams, its numbering.

Told by the peer's reader, which never waits here: each SUBMIT becomes a task of its own in the peer's
nursery, each CANCEL and ACK is a plain call. Every SUBMIT is answered once, by ACCEPTED before the first
frame of its stream or by REFUSED; a request counts against the limits from its SUBMIT to its last frame.
Without a journal a session lives as long as its peer.

It must not know sockets or encodings.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from seedance_server.admission import Admission
from seedance_server.errors import OutboxClosed, RequestRefused
from seedance_server.outbox import Outbox
from seedance_server.stream import Stream
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import Accepted, Ack, Cancel, Durability, ErrorCode, Refused, Submit

__all__ = ["Session"]

_log = structlog.get_logger(__name__)


class Session:
    """The state of one client.

    Args:
        session_id: Its name.
        nursery: Where its requests run; the peer owns it, and cancelling it ends them all.
        admission: Decides on requests.
        outbox: Where answers and frames go.
        max_streams: Requests at once.
        segment_bytes: As for `Stream`.
        on_idle: Called whenever the last request has ended.
    """

    EPOCH = 1
    """Without a journal nobody takes a session over, so it is always its first owner's."""

    def __init__(
        self,
        session_id: str,
        *,
        nursery: trio.Nursery,
        admission: Admission,
        outbox: Outbox,
        max_streams: int,
        segment_bytes: int,
        on_idle: Callable[[], None],
    ) -> None:
        self.id = session_id
        self._nursery = nursery
        self._admission = admission
        self._outbox = outbox
        self._max_streams = max_streams
        self._segment_bytes = segment_bytes
        self._on_idle = on_idle
        self._streams: dict[int, Stream] = {}
        self._opened = 0
        self._open_requests = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is being worked on."""
        return self._open_requests == 0

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that haven't ended."""
        return tuple(self._streams.values())

    def submit(self, submit: Submit) -> None:
        """Starts work on a request, or refuses it at once.

        Raises:
            OutboxClosed: As from `Outbox.put_control`.
        """
        try:
            self._check_own_limit()
            self._admission.enter()
        except RequestRefused as refusal:
            self.refuse(submit.sequence_id, refusal)
            return
        self._open_requests += 1
        deadline_ms = submit.deadline_ms
        deadline_s = float("inf") if deadline_ms is None else trio.current_time() + deadline_ms / 1e3
        self._nursery.start_soon(self._serve, submit, deadline_s)

    def _check_own_limit(self) -> None:
        if self._open_requests >= self._max_streams:
            raise RequestRefused(
                ErrorCode.OVERLOADED,
                f"at most {self._max_streams} requests at once on one connection",
                retry_after_ms=0,
            )

    def refuse(self, sequence_id: int, refusal: RequestRefused) -> None:
        """Answers a request with REFUSED.

        Raises:
            OutboxClosed: As from `Outbox.put_control`.
        """
        _log.info(
            "request refused",
            session=self.id,
            sequence_id=sequence_id,
            code=refusal.code.value,
            field=refusal.field,
        )
        self._outbox.put_control(
            Refused(
                sequence_id=sequence_id,
                code=refusal.code,
                message=refusal.reason,
                field=refusal.field,
                retryable=refusal.retry_after_ms is not None,
                retry_after_ms=refusal.retry_after_ms,
            )
        )

    async def _serve(self, submit: Submit, deadline_s: float) -> None:
        """One request from here to its last frame; whatever goes wrong in it ends in here."""
        try:
            await self._answer(submit, deadline_s)
        except OutboxClosed:
            return  # the connection is closing, there is nobody to tell
        finally:
            self._open_requests -= 1
            self._admission.leave()
            if self.is_idle:
                self._on_idle()

    async def _answer(self, submit: Submit, deadline_s: float) -> None:
        stream = None
        try:
            with trio.CancelScope(deadline=deadline_s):
                generation = await self._admission.prepare(submit)
                # No checkpoint from here to the block that closes it, or a cancellation could leak it.
                self._opened += 1
                stream = Stream(
                    self._opened,
                    generation,
                    self._outbox,
                    epoch=self.EPOCH,
                    segment_bytes=self._segment_bytes,
                    deadline_s=deadline_s,
                )
        except RequestRefused as refusal:
            self.refuse(submit.sequence_id, refusal)
            return
        if stream is None:
            self.refuse(
                submit.sequence_id,
                RequestRefused(ErrorCode.DEADLINE_EXCEEDED, "the request's deadline passed"),
            )
            return
        self._streams[stream.id] = stream
        try:
            with generation:
                self._outbox.put_control(
                    Accepted(sequence_id=submit.sequence_id, stream_id=stream.id, durability=Durability.NONE)
                )
                await stream.run()
        finally:
            del self._streams[stream.id]

    def cancel(self, cancel: Cancel) -> None:
        """Ends a stream early; one that has ended already is none of anybody's business.

        Raises:
            RemoteProtocolError: There never was such a stream.
        """
        if (stream := self._find(cancel.stream_id)) is not None:
            stream.cancel()

    def acknowledge(self, ack: Ack) -> None:
        """Moves the windows of the streams named.

        Raises:
            RemoteProtocolError: A stream never was, or a frame never was sent.
        """
        now_s = trio.current_time()
        for stream_id, frame_id in ack.processed:
            if (stream := self._find(stream_id)) is not None:
                stream.acknowledge(frame_id, now_s)

    def _find(self, stream_id: int) -> Stream | None:
        if not 1 <= stream_id <= self._opened:
            raise RemoteProtocolError(f"there is no stream {stream_id}")
        return self._streams.get(stream_id)

    def end_streams(self, code: ErrorCode, message: str) -> None:
        """Ends every stream with a retryable ERROR."""
        for stream in self.streams:
            stream.fail(code, message)
