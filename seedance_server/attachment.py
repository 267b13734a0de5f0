"""One connection's hold on a session: its requests, and the streams that are sent over it.

Told by the peer's reader, which never waits here: each SUBMIT, CANCEL and RESUME becomes a task of its own,
each ACK is a plain call. A request belongs to its connection until the commit that makes it a stream, and
from then on to the session; so a cut before the commit leaves nothing, and one after it a stream that the
same SUBMIT, sent again, finds. Every message is persisted before it is acknowledged by a checkpoint.

The life of a RESUME: stop what is being sent of the stream, find it (in memory, in the journal, or left there
by a process that is no more), compare cursor and digest, answer, send from the cursor on.

It must not know sockets or encodings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio
from structlog.contextvars import bind_contextvars

from seedance_server.admission import Admission
from seedance_server.checkpoints import Checkpoints
from seedance_server.config import Config
from seedance_server.errors import OutboxClosed, RequestRefused, SessionLost
from seedance_server.event_intake import EventIntake
from seedance_server.found_stream import ResumeRefused
from seedance_server.journal.errors import JournalError
from seedance_server.journal.records import Submission
from seedance_server.outbox import Outbox
from seedance_server.request_watch import Outcome, RequestWatch, ResumeOutcome
from seedance_server.requests import Requests
from seedance_server.senders import Senders
from seedance_server.session import Session
from seedance_server.stream import Stream
from seedance_wire.errors import CloseCode, RemoteProtocolError
from seedance_wire.messages import (
    Accepted,
    Ack,
    Cancel,
    ErrorCode,
    Event,
    Refused,
    Resume,
    Resumed,
    ResumeRejected,
    Submit,
)

__all__ = ["Attachment"]

_log = structlog.get_logger(__name__)

_REFUSAL_WAIT_S = 1.0
"""How long a refusal waits to be noted: one because the journal is slow or full must not wait for it."""


class Attachment:
    """What happens on one connection.

    Args:
        nursery: Where its tasks run; the peer owns it, and cancelling it ends them all.
        outbox: Where answers and frames go.
        admission: Decides on requests.
        requests: Makes streams of requests, and finds them again.
        config: Limits.
        end: Closes the connection.
        on_idle: Called whenever nothing is being worked on or sent any more.
    """

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        outbox: Outbox,
        admission: Admission,
        requests: Requests,
        config: Config,
        end: Callable[[CloseCode, str], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._nursery = nursery
        self._outbox = outbox
        self._admission = admission
        self._requests = requests
        self._config = config
        self._end = end
        self._on_idle = on_idle
        self._session: Session | None = None
        self._epoch = 0
        self._checkpoints: Checkpoints | None = None
        self._senders: Senders | None = None
        self._events: EventIntake | None = None
        self._pending = 0

    # ---- told by the registry

    def end(self, code: CloseCode, reason: str) -> None:
        """Closes the connection: it hasn't the session any more, so it says and does nothing more in it."""
        self.senders.close()
        self._end(code, reason)

    def open(self, session: Session, epoch: int) -> None:
        """The session is this connection's from now on, under this epoch."""
        self._session = session
        self._epoch = epoch
        self._checkpoints = Checkpoints(
            session,
            self._outbox,
            ack_level=self._requests.ack_level,
            interval_s=self._config.checkpoint_interval_ms / 1e3,
            digest_interval_s=self._config.digest_interval_ms / 1e3,
            wall_clock=self._requests.wall_clock,
        )
        self._nursery.start_soon(self._checkpoints.run)
        self._senders = Senders(
            nursery=self._nursery,
            outbox=self._outbox,
            epoch=epoch,
            checkpoints=self._checkpoints,
            end=self._end,
            on_done=self._check_idle,
        )

        self._events = EventIntake(
            session,
            self._outbox,
            account=self._admission.account_of(session.tenant),
            limit_bytes=self._config.events_waiting_bytes,
            start=self._start,
            on_processed=self._checkpoints.note_message,
        )

    def bye(self) -> None:
        """The client has nothing more to say: what it was told of too late, if at all, needs no grace."""
        self.senders.forgo_grace()

    def close(self) -> None:
        """The connection is over: streams that were to end with it do. Before its tasks are cancelled."""
        self.senders.close()
        self.session.detach(self)

    def leave(self, code: ErrorCode, message: str) -> None:
        """The server goes: what lives with the connection ends with an error, the rest stays as it is."""
        self.senders.leave(code, message)

    @property
    def session(self) -> Session:
        """The session; only once it is open."""
        assert self._session is not None  # noqa: S101
        return self._session

    @property
    def senders(self) -> Senders:
        """What is being sent; only once it is open."""
        assert self._senders is not None  # noqa: S101
        return self._senders

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being worked on or sent."""
        return self._pending == 0 and not self.senders

    def _check_idle(self) -> None:
        if self.is_idle:
            self._on_idle()

    # ---- requests

    def submit(self, submit: Submit) -> None:
        """Starts work on a request."""
        if self.senders.is_over:
            return
        deadline_ms = float("inf") if submit.deadline_ms is None else submit.deadline_ms
        deadline_s = trio.current_time() + deadline_ms / 1e3
        watch = self._requests.watch(self.session, submit)
        try:
            self._check_own_limit()
            self._admission.enter(self.session.tenant)
        except RequestRefused as refusal:
            self._start(self._refuse_new, submit, deadline_s, refusal, watch)
            return
        self._start(self._submit, submit, deadline_s, watch)

    async def _refuse_new(
        self, submit: Submit, deadline_s: float, refusal: RequestRefused, watch: RequestWatch
    ) -> None:
        """Refuses a request that is over a limit, unless it is a stream already: that is answered again."""
        is_known = False
        try:
            if not await self._requests.knows(self.session, submit):
                raise refusal
            self._admission.enter(self.session.tenant, is_known=True)
            is_known = True
        except RequestRefused as final:
            await self._refuse(submit.sequence_id, final, watch)
            return
        finally:
            if not is_known:
                watch.end(Outcome.ABORT)  # the connection ended first, if it isn't refused
        await self._submit(submit, deadline_s, watch)

    def _check_own_limit(self) -> None:
        busy = max(len(self.senders), len(self.session.streams))
        if self._pending + busy >= self._config.max_streams:
            raise RequestRefused(
                ErrorCode.OVERLOADED,
                f"at most {self._config.max_streams} requests at once in one session",
                retry_after_ms=0,
            )

    def refuse(self, sequence_id: int, refusal: RequestRefused) -> None:
        """Notes that a request needs no more work, and answers it with REFUSED."""
        if not self.senders.is_over:
            self._start(self._refuse, sequence_id, refusal, self._requests.watch(self.session))

    def _start(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if self.senders.is_over:
            return
        self._pending += 1
        self._nursery.start_soon(self._work, work, *arguments)

    async def _work(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """One message's task; whatever goes wrong in it ends in here."""
        bind_contextvars(tenant=self.session.tenant, session=self.session.id)
        try:
            with self.session.in_use():
                await work(*arguments)
        except SessionLost:
            return  # the connection is closing, there is nobody to tell
        except OutboxClosed:
            self._end(CloseCode.SLOW_READER, "answers aren't being read")  # unless it is closing anyway
        except RemoteProtocolError as error:
            self._end(error.close_code, str(error))
        except JournalError as error:
            _log.warning("journal failed a connection", reason=str(error))
            self._end(CloseCode.TRY_AGAIN_LATER, "the journal can't serve just now")
        finally:
            self._pending -= 1
            self._check_idle()

    async def _refuse(self, sequence_id: int, refusal: RequestRefused, watch: RequestWatch) -> None:
        watch.end(Outcome.REFUSED, refusal.code)
        names = {"sequence_id": sequence_id, "code": refusal.code.value, "field": refusal.field}
        _log.debug("request refused", **names)
        with trio.move_on_after(_REFUSAL_WAIT_S) as patience:
            # First, so that a request that was refused isn't carried out when it is sent again.
            await self.session.record(sequence_id)
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
        if patience.cancelled_caught:
            await self.session.record(sequence_id)
        self._note_processed()

    async def _submit(self, submit: Submit, deadline_s: float, watch: RequestWatch) -> None:
        stream: Stream | None = None
        is_told = False

        def begin(submission: Submission) -> None:
            """The request is a stream, and whoever asked is told: in the order of the streams' numbers."""
            nonlocal stream, is_told
            if not submission.replayed:
                number = submission.stream.stream_id
                stream = self._requests.start(self.session, number, submit, prepared, watch, deadline_s)
            is_told = self._tell(submit, submission, stream)

        try:
            with trio.CancelScope(deadline=deadline_s) as patience:
                prepared = await self._requests.prepare(self.session, submit, watch)
                await self._requests.commit(self.session, submit, prepared, watch, begin)
            if patience.cancelled_caught:
                await self._refuse(submit.sequence_id, _too_late(), watch)
        except RequestRefused as refusal:
            await self._refuse(submit.sequence_id, refusal, watch)
        finally:
            if stream is None:
                self._admission.leave(self.session.tenant)
                watch.end(Outcome.ABORT)  # the connection ended before it was written down
            elif not is_told:
                self.senders.disown(stream)

    def _tell(self, submit: Submit, submission: Submission, stream: Stream | None) -> bool:
        """Answers a request that was committed, and sends its stream; False if the connection is over.

        The commit isn't cut short with the connection, so it may end after it.
        """
        if self.senders.is_over:
            return False
        record = submission.stream
        self._outbox.put_control(
            Accepted(
                sequence_id=submit.sequence_id,
                stream_id=record.stream_id,
                durability=self._requests.durability_of(submit),
                replayed=submission.replayed,
                first_available_id=record.first_available_id,
                last_id=record.last_id,
            )
        )
        if stream is not None:
            self.senders.send(stream.id, self._requests.source(self.session, stream), stream)
        self._note_processed()
        return True

    def cancel(self, cancel: Cancel) -> None:
        """Ends a stream early; one that has ended already is none of anybody's business."""
        if (stream := self.session.stream(cancel.stream_id)) is not None:
            stream.cancel()
        self._start(self._cancel, cancel)

    async def _cancel(self, cancel: Cancel) -> None:
        stream = self.session.stream(cancel.stream_id)
        if stream is None:
            stream = await self._requests.find_to_cancel(self.session, cancel.stream_id)
        if stream is not None:
            stream.cancel()
            await stream.over.wait()  # the end is durable before the message counts as processed
        await self.session.record(cancel.sequence_id)
        self._note_processed()

    def report(self, event: Event) -> None:
        """Takes what the client reports of its users."""
        assert self._events is not None  # noqa: S101 - open
        self._events.put(event)

    def acknowledge(self, ack: Ack) -> None:
        """See `Senders.acknowledge`."""
        self.senders.acknowledge(ack)

    def resume(self, resume: Resume) -> None:
        """Stops what is being sent of a stream and starts it again behind the client's last frame."""
        self.senders.discontinue(resume.stream_id)
        self._start(self._resume, resume)

    async def _resume(self, resume: Resume) -> None:
        stream_id = resume.stream_id
        await self.senders.stopped(stream_id)
        try:
            found = await self._requests.find(self.session, resume)
        except ResumeRefused as refusal:
            _log.info("resume refused", stream_id=stream_id, reason=str(refusal))
            self._requests.note_resume(ResumeOutcome.REJECTED)
            self.senders.give_up(stream_id)
            self._outbox.put_control(
                ResumeRejected(
                    stream_id=stream_id,
                    code=refusal.code,
                    first_available_id=refusal.first_available_id,
                    last_id=refusal.last_id,
                )
            )
            return
        # No checkpoint from here, or the stream could leave memory before it has this reader.
        self._requests.note_resume(
            ResumeOutcome.LIVE if found.is_live else ResumeOutcome.ENDED,
            found.last_id - resume.last_processed_id,
        )
        self._outbox.put_control(
            Resumed(
                stream_id=stream_id,
                next_id=resume.last_processed_id + 1,
                epoch=self._epoch,
                first_available_id=found.first_available_id,
                last_id=found.last_id,
                live=found.is_live,
            )
        )
        if not found.is_live and resume.last_processed_id == found.last_id:
            self.senders.give_up(stream_id)
            return
        taken_id = resume.last_processed_id if resume.taken_id is None else resume.taken_id
        self.senders.send(
            stream_id,
            found.source,
            found.stream,
            after_id=resume.last_processed_id,
            taken_id=max(taken_id, found.first_available_id - 1),
            digest=found.digest,
        )

    def _note_processed(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.note_message()


def _too_late() -> RequestRefused:
    return RequestRefused(ErrorCode.DEADLINE_EXCEEDED, "the request's deadline passed")
