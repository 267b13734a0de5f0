"""From a SUBMIT to a stream that is written down, and from what is written down back to a stream.

What was committed for a request is all that its answer depends on: prompt ids, seed, parameters and the
model's fingerprint. So a stream that another process left behind is taken over by loading it: its text so far
is read back, its tokens are prefilled, and the next token falls at the next position. What a client has seen
is never made again.

It must not know connections, windows or encodings.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

import structlog
import trio

from seedance_server.admission import Admission
from seedance_server.config import Config
from seedance_server.errors import RequestRefused
from seedance_server.found_stream import FoundStream, ResumeRefused, last_readable_id
from seedance_server.frame_draft import Position
from seedance_server.frame_source import FrameSource, read_text, text_hash
from seedance_server.journal.errors import StreamExpired, StreamNotFound, StreamTruncated
from seedance_server.journal.interface import Journal
from seedance_server.journal.records import NewStream, StreamRecord, StreamState, Submission
from seedance_server.not_taken import NotTaken, not_taken
from seedance_server.prepared import Prepared
from seedance_server.request_watch import Observer, RequestWatch, ResumeOutcome, Stage
from seedance_server.session import Session
from seedance_server.stream import Stream
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import (
    AckLevel,
    Durability,
    ErrorCode,
    OnDisconnect,
    Resume,
    ResumeFailure,
    Submit,
)
from seedance_wire.stored_form import dump_request, load_submit

__all__ = ["Requests"]

_log = structlog.get_logger(__name__)


class Requests:
    """Makes streams of requests, and finds them again.

    Args:
        journal: Where they are kept.
        admission: Encodes, checks and starts.
        config: Limits and the server's own durability.
        wall_clock: Seconds since 1970.
        observers: Who watches requests.
    """

    def __init__(
        self,
        journal: Journal,
        admission: Admission,
        config: Config,
        *,
        wall_clock: Callable[[], float] = time.time,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._config = config
        self._durability = Durability(config.durability)
        self.wall_clock = wall_clock
        self._observers = tuple(observers)

    @property
    def ack_level(self) -> AckLevel:
        """What a commit is worth here."""
        return AckLevel.COMMITTED if self._durability is Durability.COMMITTED else AckLevel.RECEIVED

    def durability_of(self, submit: Submit) -> Durability:
        """What a request asks for, or gets."""
        return submit.durability or self._durability

    # ---- whoever watches

    def watch(
        self, session: Session, submit: Submit | None = None, *, stream_id: int | None = None
    ) -> RequestWatch:
        """Watches a request from now on; one that is taken up has its stream's number already."""
        return RequestWatch(
            self._observers,
            self._admission.clock,
            tenant=session.tenant,
            session=session.id,
            canary=session.is_canary,
            traceparent=None if submit is None else submit.traceparent,
            stream_id=stream_id,
            is_taken_up=stream_id is not None,
        )

    def note_resume(self, outcome: ResumeOutcome, replayed_frames: int = 0) -> None:
        """A client came back to a stream; so many frames are sent again."""
        for observer in self._observers:
            observer.resumed(outcome, replayed_frames)

    # ---- new requests

    async def prepare(self, session: Session, submit: Submit, watch: RequestWatch) -> Prepared:
        """Encodes and checks a request.

        Raises:
            RequestRefused: With everything that the client should know.
        """
        if self.durability_of(submit) is Durability.COMMITTED and self._durability is Durability.NONE:
            raise RequestRefused(
                ErrorCode.UNSUPPORTED, "this server keeps no answers: ask for none", field="durability"
            )
        preceding_ids = None
        if submit.continues is not None:
            preceding_ids = await self._conversation(session, submit.continues)
        prepared = await self._admission.prepare(
            submit, preceding_ids, tenant=session.tenant, session=session.id, arrival_s=watch.arrival_s
        )
        watch.reach(Stage.PREPARED)
        return prepared

    async def _conversation(self, session: Session, stream_id: int) -> tuple[int, ...]:
        """The exact ids of a conversation up to the end of an answer."""
        try:
            stored = await self._journal.load_stream(session.id, stream_id)
        except (StreamNotFound, StreamTruncated) as error:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, str(error), field="continues") from error
        if stored.record.state is not StreamState.FINISHED:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, "must name a stream that has ended", field="continues"
            )
        if stored.model_fingerprint != self._admission.model.fingerprint:
            raise RequestRefused(
                ErrorCode.FINGERPRINT_MISMATCH, "another model gave that answer", field="continues"
            )
        return (*stored.prompt_ids, *stored.token_ids)

    async def knows(self, session: Session, submit: Submit) -> bool:
        """Whether a request came before and is a stream: it is answered again, whatever is used up by now.

        Raises:
            JournalError: The journal failed.
        """
        return await self._journal.knows_request(session.tenant, submit.idempotency_key)

    async def commit(
        self,
        session: Session,
        submit: Submit,
        prepared: Prepared,
        watch: RequestWatch,
        committed: Callable[[Submission], None] | None = None,
    ) -> Submission:
        """Writes a request down, once for all times that it is sent, and charged once.

        Args:
            session: Where it came.
            submit: The request.
            prepared: The same, encoded.
            watch: Whoever watches it.
            committed: Called with what is returned, in the order of the streams' numbers; see
                `Journal.submit`.

        Raises:
            RequestRefused: It is another one under the same key, its tenant's quota is used up, or there is
                no room.
            SessionLost, JournalError: As from `Session.submit`.
        """
        reserved = prepared.reserve_tokens
        try:
            self._admission.reserve(session.tenant, prepared)
        except RequestRefused:
            if not await self.knows(session, submit):
                raise
            reserved = 0  # it was charged when it came first
        is_new = False

        def note(submission: Submission) -> None:
            nonlocal is_new
            is_new = not submission.replayed
            if is_new:
                watch.reach(Stage.COMMITTED)
            else:
                watch.replay()
            if committed is not None:
                committed(submission)

        try:
            return await self._commit(session, submit, prepared, note)
        finally:
            if not is_new:
                self._admission.settle(session.tenant, reserved, 0)

    async def _commit(
        self,
        session: Session,
        submit: Submit,
        prepared: Prepared,
        committed: Callable[[Submission], None],
    ) -> Submission:
        request, fingerprint = dump_request(submit)
        new = NewStream(
            sequence_id=submit.sequence_id,
            idempotency_key=submit.idempotency_key,
            fingerprint=fingerprint,
            request=request,
            model_fingerprint=self._admission.model.fingerprint,
            prompt_ids=prepared.prompt_ids,
            seed=prepared.seed,
        )
        try:
            return await session.submit(new, committed)
        except NotTaken as error:
            raise not_taken(error) from error

    def start(
        self,
        session: Session,
        stream_id: int,
        submit: Submit,
        prepared: Prepared,
        watch: RequestWatch,
        deadline_s: float,
    ) -> Stream:
        """Lets a stream that was committed run; `Admission.leave` is called when it is over."""
        is_durable = self.durability_of(submit) is not Durability.NONE
        watch.stream_id = stream_id
        stream = Stream(
            stream_id,
            prepared,
            watch=watch,
            admission=self._admission,
            store=session,
            config=self._config,
            is_durable=is_durable,
            cancel_on_disconnect=not is_durable or submit.on_disconnect is OnDisconnect.CANCEL,
            deadline_s=deadline_s,
        )
        self._run(session, stream, prepared.reserve_tokens, len(prepared.prompt_ids))
        return stream

    def _run(self, session: Session, stream: Stream, reserved: int, prompt_tokens: int) -> None:
        """Starts it; what it reserved and what it used of its tenant's quota is settled when it is over."""
        had = stream.completion_tokens

        def settle() -> None:
            used = stream.completion_tokens - had + (prompt_tokens if stream.has_begun else 0)
            self._admission.settle(session.tenant, reserved, used)
            self._admission.leave(session.tenant, has_begun=stream.has_begun)

        session.start(stream, settle)

    def source(self, session: Session, stream: Stream) -> FrameSource:
        """The frames of a stream that is being produced."""
        return FrameSource(self._journal if stream.is_durable else None, session.id, stream.id, stream.tail)

    # ---- finding them again

    async def find(self, session: Session, resume: Resume) -> FoundStream:
        """Finds what a RESUME asks for; a live stream that isn't in memory is taken over.

        No checkpoint is passed between finding a stream in memory and returning it.

        Raises:
            ResumeRefused: With the answer.
            SessionLost, JournalError: The journal failed.
        """
        stream_id, after_id = resume.stream_id, resume.last_processed_id
        try:
            if (stream := session.stream(stream_id)) is not None:
                if not stream.is_durable:
                    raise ResumeRefused(ResumeFailure.NOT_FOUND)
                first_id, last_id = 1, stream.tail.last_id
            else:
                record = await self._journal.find_stream(session.id, stream_id)
                if record.state is StreamState.EXPIRED:
                    raise ResumeRefused(ResumeFailure.EXPIRED, record.first_available_id, record.last_id)
                if not record.last_id and not await self._is_kept(session, stream_id):
                    raise ResumeRefused(ResumeFailure.NOT_FOUND)
                first_id, last_id = record.first_available_id, last_readable_id(record)
            if after_id > last_id:
                raise ResumeRefused(ResumeFailure.CURSOR_AHEAD, first_id, last_id)
            if after_id + 1 < first_id:
                raise ResumeRefused(ResumeFailure.TRUNCATED, first_id, last_id)
            digest = await self._compare(session, resume, first_id, last_id)
            return await self._found(session, stream_id, digest)
        except StreamNotFound as error:
            raise ResumeRefused(ResumeFailure.NOT_FOUND) from error
        except StreamTruncated as error:
            code = ResumeFailure.EXPIRED if isinstance(error, StreamExpired) else ResumeFailure.TRUNCATED
            raise ResumeRefused(code, error.first_available_id, error.last_id) from error

    async def _is_kept(self, session: Session, stream_id: int) -> bool:
        """Whether the journal has a stream's frames: one without durability has but a row there."""
        stored = await self._journal.load_stream(session.id, stream_id)
        return self.durability_of(load_submit(stored.request)) is not Durability.NONE

    async def _compare(
        self, session: Session, resume: Resume, first_id: int, last_id: int
    ) -> hashlib._Hash | None:
        """Compares the client's digest with the text up to its cursor, where both can be had."""
        if resume.digest is None or first_id > 1:
            return None
        digest = await text_hash(self._journal, session.id, resume.stream_id, resume.last_processed_id)
        if digest.digest()[: len(resume.digest)] != resume.digest:
            raise ResumeRefused(ResumeFailure.DIVERGED, first_id, last_id)
        return digest

    async def _found(self, session: Session, stream_id: int, digest: hashlib._Hash | None) -> FoundStream:
        async with session.opening:  # or two RESUMEs would each take it over
            if (stream := session.stream(stream_id)) is None:
                record = await self._journal.find_stream(session.id, stream_id)
                if record.state is not StreamState.LIVE:
                    return FoundStream(
                        source=FrameSource(self._journal, session.id, stream_id, None),
                        stream=None,
                        first_available_id=record.first_available_id,
                        last_id=last_readable_id(record),
                        digest=digest,
                    )
                stream = await self._take_over(session, record, to_generate=True)
            return FoundStream(
                source=self.source(session, stream),
                stream=stream,
                first_available_id=1,
                last_id=stream.tail.last_id,
                digest=digest,
            )

    async def find_to_cancel(self, session: Session, stream_id: int) -> Stream | None:
        """A live stream, taken over if need be, to be cancelled; None if it has ended.

        Raises:
            RemoteProtocolError: There never was such a stream.
            JournalError: The journal failed.
        """
        async with session.opening:
            if (stream := session.stream(stream_id)) is not None:
                return stream
            try:
                record = await self._journal.find_stream(session.id, stream_id)
            except StreamTruncated:
                return None
            except StreamNotFound as error:
                raise RemoteProtocolError(f"there is no stream {stream_id}") from error
            if record.state is not StreamState.LIVE:
                return None
            stream = await self._take_over(session, record, to_generate=False)
            stream.cancel()
            return stream

    async def _take_over(self, session: Session, record: StreamRecord, *, to_generate: bool) -> Stream:
        """Goes on with a stream from what is written of it."""
        stored = await self._journal.load_stream(session.id, record.stream_id)
        submit = load_submit(stored.request)
        same_model = stored.model_fingerprint == self._admission.model.fingerprint
        if to_generate and not same_model and not submit.allow_fingerprint_change:
            raise ResumeRefused(ResumeFailure.FINGERPRINT_MISMATCH, 1, record.last_id)
        text, segment_start = await read_text(self._journal, session.id, record.stream_id, record.last_id)
        encoded = text.encode()
        deadline_s = float("inf")
        if submit.deadline_ms is not None:
            left_ms = record.created_ms + submit.deadline_ms - self.wall_clock() * 1e3
            deadline_s = trio.current_time() + left_ms / 1e3
        stream = Stream(
            record.stream_id,
            self._admission.prepare_again(
                submit, stored.prompt_ids, stored.seed, tenant=session.tenant, session=session.id
            ),
            admission=self._admission,
            store=session,
            config=self._config,
            is_durable=True,
            cancel_on_disconnect=submit.on_disconnect is OnDisconnect.CANCEL,
            watch=self.watch(session, submit, stream_id=record.stream_id),
            deadline_s=deadline_s,
            position=Position(
                next_id=record.next_frame_id,
                offset=len(encoded),
                segment_start=segment_start,
                digest=hashlib.sha256(encoded),
            ),
            token_ids=stored.token_ids,
            delivered_text=text,
            attempts=stored.attempts,
        )
        # No checkpoint from here until it has a reader: without one it might leave at once.
        _log.info("stream taken over", session=session.id, stream_id=stream.id, frames=record.last_id)
        self._admission.enter_again(session.tenant)
        self._run(session, stream, 0, 0)  # its prompt was charged when it began
        return stream
