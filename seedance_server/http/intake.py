"""From a request that an HTTP client makes to the stream that answers it: the twin of a connection's SUBMIT.

The same admission, the same commit, the same one start however often it is sent. A choice belongs to its
request until it is committed, and from then on to the session.

It must not know HTTP.
"""

from __future__ import annotations

import trio
from attrs import frozen
from structlog.contextvars import bind_contextvars

from seedance_server.errors import RequestRefused
from seedance_server.house import Service
from seedance_server.journal.records import StreamRecord
from seedance_server.request_watch import Outcome
from seedance_server.session import Session
from seedance_server.stream import Stream
from seedance_wire.errors import LocalProtocolError
from seedance_wire.messages import ErrorCode, Submit

__all__ = ["Taken", "take"]


@frozen
class Taken:
    """A request that is a stream.

    Attributes:
        record: As it was committed.
        stream: Its producer, if it is new; else it is to be looked for.
    """

    record: StreamRecord
    stream: Stream | None


async def take(service: Service, session: Session, submit: Submit) -> Taken:
    """Admits, commits and starts a request, or finds that it was before.

    No checkpoint is passed between the start of a stream and returning it.

    Raises:
        RequestRefused: With everything that the client should know.
        SessionLost, JournalError: The journal can't serve.

    If cancelled, nothing has begun.
    """
    bind_contextvars(tenant=session.tenant, session=session.id)
    requests, admission = service.requests, service.admission
    deadline_ms = float("inf") if submit.deadline_ms is None else submit.deadline_ms
    deadline_s = trio.current_time() + deadline_ms / 1e3
    watch = requests.watch(session, submit)
    has_entered = False
    stream: Stream | None = None
    try:
        await _enter(service, session, submit)
        has_entered = True
        with trio.CancelScope(deadline=deadline_s):
            prepared = await requests.prepare(session, submit, watch)
            async with session.submitting:  # choices in the order of the streams' numbers
                submission = await requests.commit(session, submit, prepared, watch)
                # No checkpoint from here: the request is a stream.
                if not submission.replayed:
                    number = submission.stream.stream_id
                    stream = requests.start(session, number, submit, prepared, watch, deadline_s)
                return Taken(submission.stream, stream)
        raise _too_late()
    except LocalProtocolError as error:  # it can't be written down
        watch.end(Outcome.REFUSED, ErrorCode.INVALID_REQUEST)
        raise RequestRefused(ErrorCode.INVALID_REQUEST, str(error)) from error
    except RequestRefused as refusal:
        watch.end(Outcome.REFUSED, refusal.code)
        raise
    finally:
        if stream is None:
            watch.end(Outcome.ABORT)  # unless it was refused, or replayed
            if has_entered:
                admission.leave(session.tenant)


def _too_late() -> RequestRefused:
    return RequestRefused(ErrorCode.DEADLINE_EXCEEDED, "the request's deadline passed")


async def _enter(service: Service, session: Session, submit: Submit) -> None:
    """Counts it in; one that is over a limit only if it is a stream already, and is answered again."""
    try:
        service.admission.enter(session.tenant)
    except RequestRefused:
        if not await service.requests.knows(session, submit):
            raise
        service.admission.enter(session.tenant, is_known=True)
