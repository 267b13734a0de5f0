"""What one client has going on, whoever is connected: whose turn it is to write, and its live streams.

A session outlives connections and, in the journal, processes. It has one owner, told by its epoch: each claim
adds one, and every write names the epoch it is made under. Writes of this process that meet a claim of this
process are made again under the new epoch; a claim of anybody else, or a journal that failed, loses the
session: everything stops where it is, and the client finds it again in the journal. In memory are only
streams that are being produced; all others are read from the journal.

It must not know sockets, encodings or windows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

import structlog
import trio
from structlog.contextvars import bind_contextvars

from seedance_server.errors import SessionLost, Superseded
from seedance_server.frame_courier import FrameCourier
from seedance_server.journal.append import Append
from seedance_server.journal.errors import (
    Fenced,
    JournalClosed,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalOverloaded,
    OutOfOrder,
    SessionNotFound,
    StreamEnded,
    StreamNotFound,
    TooManyEarlyMessages,
)
from seedance_server.journal.interface import Journal
from seedance_server.journal.records import FrameRecord, NewEventBatch, NewStream, SessionRecord, Submission
from seedance_server.stream import Stream
from seedance_wire.errors import CloseCode

__all__ = ["Holder", "Session"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_EARLY_PAUSE_S = 0.1
"""Between attempts to note a message: an earlier one still waits for its answer, or there is no room."""


class Holder(Protocol):
    """The connection that has the session, as far as the session knows it."""

    def end(self, code: CloseCode, reason: str) -> None:
        """Closes the connection."""


class Session:
    """The state of one client.

    Args:
        record: As claimed or created.
        journal: Where it is kept.
        courier: Takes its streams' frames there.
        nursery: Where its streams run; the registry owns it.
        claims_settled: Waits until no claim of the session is under way in this process.
        lose_other: Has a session, by its name, stop whatever it does in this process.
        on_unused: Called whenever nothing holds it in memory any more.
        on_events: Called when reported events were kept; None: they go nowhere, so none are to be kept.

    Attributes:
        is_canary: Whether whoever holds it says that its requests try something out.
    """

    def __init__(
        self,
        record: SessionRecord,
        *,
        journal: Journal,
        courier: FrameCourier,
        nursery: trio.Nursery,
        claims_settled: Callable[[str], Awaitable[None]],
        lose_other: Callable[[str], None],
        on_unused: Callable[[Session], None],
        on_events: Callable[[], None] | None = None,
    ) -> None:
        self.id = record.session_id
        self.tenant = record.tenant
        self.epoch = record.epoch
        self.last_sequence_id = record.last_sequence_id
        self.is_canary = False
        self.submitting = trio.Lock()
        self.opening = trio.Lock()
        self._journal = journal
        self._courier = courier
        self._nursery = nursery
        self._claims_settled = claims_settled
        self._lose_other = lose_other
        self._on_unused = on_unused
        self._on_events = on_events
        self._streams: dict[int, Stream] = {}
        self._holder: Holder | None = None
        self._uses = 0
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether it isn't this process's any more."""
        return self._is_lost

    @property
    def is_unused(self) -> bool:
        """Whether neither a connection, nor what it asked for, nor a stream holds it in memory."""
        return self._holder is None and not self._uses and not self._streams

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that are being produced."""
        return tuple(self._streams.values())

    def stream(self, stream_id: int) -> Stream | None:
        """A stream that is being produced."""
        return self._streams.get(stream_id)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps it in memory: a commit that is under way may end after its connection, as a stream."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self._check_use()

    # ---- who holds it

    def attach(self, holder: Holder, record: SessionRecord) -> None:
        """Gives the session to a connection that has claimed it; whoever had it is closed.

        Raises:
            Superseded: A newer claim came first.
        """
        if record.epoch < self.epoch:
            raise Superseded
        former, self._holder = self._holder, holder
        self.epoch = record.epoch
        self.last_sequence_id = max(self.last_sequence_id, record.last_sequence_id)
        if former is not None and former is not holder:
            former.end(CloseCode.SUPERSEDED, "a newer connection has the session")

    def detach(self, holder: Holder) -> None:
        """The connection is gone; nothing if it hasn't the session any more."""
        if self._holder is not holder:
            return
        self._holder = None
        if not self._is_lost:
            with suppress(
                RuntimeError
            ):  # the nursery is over, cancelled without a drain: nothing is written then
                self._nursery.start_soon(self._release, self.epoch)
        self._check_use()

    async def _release(self, epoch: int) -> None:
        try:
            await self._journal.release_session(self.id, epoch)
        except (Fenced, SessionNotFound, JournalClosed):
            return  # claimed again, or forgotten, or over
        except JournalError as error:
            # Its time to be claimed begins later then; nothing else depends on it.
            _log.warning("session not released", session=self.id, reason=str(error))

    def _check_use(self) -> None:
        if self.is_unused:
            self._on_unused(self)

    def lose(self, reason: str, code: CloseCode = CloseCode.FENCED) -> None:
        """Stops everything where it is; what is in the journal is what there is. Safe to repeat."""
        if self._is_lost:
            return
        self._is_lost = True
        _log.warning("session lost", session=self.id, reason=reason, streams=len(self._streams))
        for stream in self.streams:
            stream.stop()
        if self._holder is not None:
            self._holder.end(code, reason)
        self._on_unused(self)

    # ---- writing

    async def _own(self, write: Callable[[int], Awaitable[T]]) -> T:
        """Writes under the current epoch, and again if a claim of this process came between.

        Raises:
            SessionLost: The session isn't ours.
            JournalError: The others, as of the write.
        """
        while True:
            if self._is_lost:
                raise SessionLost
            epoch = self.epoch
            try:
                return await write(epoch)
            except Fenced as error:
                await self._claims_settled(self.id)
                if self.epoch == epoch:
                    self.lose("the session has another owner")
                    raise SessionLost from error
            except (SessionNotFound, StreamEnded, StreamNotFound, OutOfOrder) as error:
                self.lose("somebody else had the session")
                raise SessionLost from error
            except (JournalFailed, JournalClosed) as error:
                # Whether this was written is unknown; what is there tells whoever claims the session next.
                self.lose("the journal failed: come back")
                raise SessionLost from error

    async def append(self, stream_id: int, frames: Sequence[FrameRecord], finish: str | None) -> None:
        """See `FrameStore.append`."""
        await self._own(lambda epoch: self._journal.append(self.id, epoch, stream_id, frames, finish=finish))

    def append_soon(
        self, stream_id: int, frames: Sequence[FrameRecord], settled: Callable[[bool], None]
    ) -> None:
        """See `FrameStore.append_soon`."""

        def tell(error: Exception | None) -> None:
            if isinstance(error, JournalFailed):  # as in `_own`; what else went wrong is tried again there
                self.lose("the journal failed: come back")
            settled(error is None)

        if self._is_lost:
            settled(False)
        else:
            self._courier.put(Append(self.id, self.epoch, stream_id, frames), tell)

    async def note_attempt(self, stream_id: int) -> int:
        """See `FrameStore.note_attempt`."""
        try:
            return await self._own(lambda epoch: self._journal.note_attempt(self.id, epoch, stream_id))
        except (JournalFull, JournalOverloaded):
            return 1

    async def abandon(self, stream_id: int) -> None:
        """See `FrameStore.abandon`."""
        try:
            await self._own(lambda epoch: self._journal.abandon(self.id, epoch, stream_id))
        except (SessionLost, JournalError) as error:
            _log.debug("stream without durability not ended", session=self.id, reason=str(error))

    async def submit(
        self, stream: NewStream, committed: Callable[[Submission], None] | None = None
    ) -> Submission:
        """Starts a stream for a request, or finds the one it has; once it returns, so it is, for ever.

        One that another session had is this one's from now on; nothing is written there any more.

        Args:
            stream: The request.
            committed: Called with what is returned, in the order of the streams' numbers; see
                `Journal.submit`.

        Raises:
            SessionLost: As from every write.
            JournalError: As from `Journal.submit`.
            Exception: What ``committed`` raises.
        """

        def note(submission: Submission) -> None:
            self._note_processed(submission.last_sequence_id)
            if submission.moved_from is not None:
                _log.info("stream moved", session=self.id, moved_from=submission.moved_from)
                self._lose_other(submission.moved_from)
            if committed is not None:
                committed(submission)

        while True:
            try:
                return await self._own(lambda epoch: self._journal.submit(self.id, epoch, stream, note))
            except TooManyEarlyMessages:
                await trio.sleep(_EARLY_PAUSE_S)

    async def record(self, sequence_id: int) -> None:
        """Notes that a client's message needs no more processing, so that it won't be sent again.

        Waits as long as there is no room: the messages after it can't count as processed before it does.

        Raises:
            SessionLost: As from every write.
        """
        while True:
            try:
                last_id = await self._own(
                    lambda epoch: self._journal.record_message(self.id, epoch, sequence_id)
                )
            except (TooManyEarlyMessages, JournalFull, JournalOverloaded):
                await trio.sleep(_EARLY_PAUSE_S)
                continue
            self._note_processed(last_id)
            return

    @property
    def takes_events(self) -> bool:
        """Whether reported events go anywhere."""
        return self._on_events is not None

    async def take_events(self, batch: NewEventBatch) -> None:
        """Keeps what the client reports; once it returns, so it is, however often it is sent again.

        Raises:
            SessionLost: As from every write.
            JournalError: As from `Journal.take_events`.
        """
        while True:
            try:
                last_id = await self._own(lambda epoch: self._journal.take_events(self.id, epoch, batch))
            except TooManyEarlyMessages:
                await trio.sleep(_EARLY_PAUSE_S)
                continue
            self._note_processed(last_id)
            if self._on_events is not None:
                self._on_events()
            return

    def _note_processed(self, last_id: int) -> None:
        self.last_sequence_id = max(self.last_sequence_id, last_id)

    # ---- streams

    def start(self, stream: Stream, on_over: Callable[[], None]) -> None:
        """Lets a stream run; ``on_over`` is called when it has left memory."""
        self._streams[stream.id] = stream
        self._nursery.start_soon(self._run, stream, on_over)

    async def _run(self, stream: Stream, on_over: Callable[[], None]) -> None:
        bind_contextvars(tenant=self.tenant, session=self.id, stream_id=stream.id)
        try:
            await stream.run()
        except (JournalFull, JournalOverloaded) as error:
            self.lose(str(error), CloseCode.TRY_AGAIN_LATER)
        except Exception:  # noqa: BLE001 - contained: one session's, and its client finds what was written
            _log.exception("stream failed")
            self.lose("a bug in the server, see its log", CloseCode.INTERNAL_ERROR)
        finally:
            del self._streams[stream.id]
            on_over()
            self._check_use()
