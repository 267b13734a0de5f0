"""A node of the service, reduced to what it decides when a client asks.

It speaks through the real `Connection` and writes through the real journal; between them stands only what a
server must get right, in methods small enough that a mutant replaces one of them. What it keeps in memory is
gone with `kill`. It never waits: the machine decides what happens next.
"""

from __future__ import annotations

from contextlib import suppress

from seedance_server.journal.errors import (
    CursorAhead,
    Fenced,
    IdempotencyMismatch,
    RequestInUse,
    SessionNotFound,
    StreamExpired,
    StreamNotFound,
    StreamTruncated,
)
from seedance_server.journal.records import NewSession, NewStream, StreamRecord, StreamState
from seedance_wire.capabilities import agreed_capabilities
from seedance_wire.codes import ResumeFailure
from seedance_wire.connection import Connection
from seedance_wire.messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Durability,
    ErrorCode,
    FinishReason,
    GoAway,
    Hello,
    Limits,
    Refused,
    Resume,
    Resumed,
    ResumeRejected,
    Submit,
    Welcome,
)
from seedance_wire.state import Role
from seedance_wire.stored_form import dump_submit, request_fingerprint
from tests.stateful.egress import Egress, OwnedSession, Peer, sha256
from tests.stateful.live_stream import LiveStream, Reader
from tests.stateful.network import Link
from tests.stateful.shared_journal import at_once

__all__ = ["MODEL", "Node"]

MODEL = b"model"
LIMITS = Limits(max_message_bytes=262_144, max_streams=8, max_context_tokens=4_096)
LEAVING, SUPERSEDED = 1001, 4409
_FAILURES = {
    StreamNotFound: ResumeFailure.NOT_FOUND,
    StreamExpired: ResumeFailure.EXPIRED,
    StreamTruncated: ResumeFailure.TRUNCATED,
    CursorAhead: ResumeFailure.CURSOR_AHEAD,
}


class Node(Egress):
    """One node; see `Egress` for how it is made."""

    # ---- connections

    def open(self, link: Link, tenant: str, subprotocol: str) -> None:
        """A client of this tenant has connected."""
        self.peers[id(link)] = Peer(link, tenant, Connection(Role.SERVER, subprotocol, trial_messages=2))

    def receive(self, link: Link) -> None:
        """Takes the next message from a link and acts on it."""
        peer = self.peers[id(link)]
        peer.connection.receive_data(link.up.popleft())
        while (event := peer.connection.next_event()) is not None:
            try:
                self._handle(peer, event)
            except Fenced as fenced:
                self.fenced(fenced.session_id)

    def _handle(self, peer: Peer, event: object) -> None:
        match event:
            case Hello():
                self.hello(peer, event)
            case Submit():
                self.submit(peer, event)
            case Cancel():
                self.cancel(peer, event)
            case Resume():
                self.resume(peer, event)
            case Ack():
                for stream_id, frame_id in event.processed:
                    self.acknowledged(peer, stream_id, frame_id)
            case Bye():
                self.lose(peer.link)
            case _:
                raise AssertionError(f"unexpected: {event}")

    def kill(self) -> None:
        """All in memory is gone; the kernel closes the sockets, the next process opens the journal."""
        self._close(1006)

    def drain(self) -> None:
        """SIGTERM: clients are told to go elsewhere, no new request is taken, streams go on."""
        self.draining = True
        for peer in tuple(self.peers.values()):
            if peer.session is None:
                self.lose(peer.link, LEAVING)
            else:
                self.tell(peer, GoAway(reason="the server leaves"))

    def leave(self) -> None:
        """The time for that is over: what hasn't ended stays in the journal."""
        self._close(LEAVING)

    def _close(self, code: int) -> None:
        for peer in self.peers.values():
            peer.link.close(code)
        for session in self.sessions.values():
            if session.peer is not None:
                with suppress(Fenced, SessionNotFound):
                    at_once(self.journal.release_session(session.id, session.epoch))
        self.peers.clear()
        self.sessions.clear()
        self.draining = False

    # ---- what clients ask

    def hello(self, peer: Peer, hello: Hello) -> None:
        """Attaches to the session that is named and proved, or makes a new one."""
        present = False
        if hello.session_id is not None and hello.resume_token is not None:
            present = self._attach(peer, hello.session_id, hello.resume_token)
        token = hello.resume_token if present else self.entropy().to_bytes(32)
        if not present:
            name = f"{self.entropy():032x}"
            new = NewSession(session_id=name, tenant=peer.tenant, token_hash=sha256(token))
            record = at_once(self.journal.create_session(new))
            self.journal.ledger.claimed(name, record.epoch)
            peer.session = self.sessions[name] = OwnedSession(name, record.epoch, 0, peer=peer)
        assert peer.session is not None
        assert token is not None
        self.tell(
            peer,
            Welcome(
                session_id=peer.session.id,
                epoch=peer.session.epoch,
                last_sequence_id=peer.session.last_sequence_id,
                model="m",
                limits=LIMITS,
                capabilities=agreed_capabilities(hello.capabilities, peer.connection.capabilities),
                resume_token=token,
                session_present=present,
            ),
        )

    def _attach(self, peer: Peer, session_id: str, token: bytes) -> bool:
        try:
            claimed = at_once(self.journal.claim_session(session_id, peer.tenant, sha256(token)))
        except SessionNotFound:
            return False
        epoch = claimed.session.epoch
        session = self.sessions.get(session_id)
        if session is None or not self.remembers(session, epoch):
            self.fenced(session_id)
            session = self.sessions[session_id] = OwnedSession(session_id, epoch, 0)
        elif session.peer is not None:
            self.peers.pop(id(session.peer.link), None)
            session.peer.link.close(SUPERSEDED)
        session.epoch, session.peer, peer.session = epoch, peer, session
        session.last_sequence_id = claimed.session.last_sequence_id
        peer.connection.know_streams(claimed.session.next_stream_id - 1)
        return True

    def remembers(self, session: OwnedSession, epoch: int) -> bool:
        """Whether what is in memory still counts under a new epoch: nobody owned the session in between."""
        return epoch == session.epoch + 1

    def submit(self, peer: Peer, submit: Submit) -> None:
        """Starts a stream, or finds the one that the key has; only then it is answered."""
        session = peer.session
        assert session is not None
        if self.draining:
            self._refuse_unwritten(peer, session, submit, ErrorCode.DRAINING)
            return
        new = NewStream(
            sequence_id=submit.sequence_id,
            idempotency_key=submit.idempotency_key,
            fingerprint=self.fingerprint(submit),
            request=dump_submit(submit),
            model_fingerprint=MODEL,
            prompt_ids=(1,),
            seed=7,
        )
        try:
            submission = at_once(self.journal.submit(session.id, session.epoch, new))
        except IdempotencyMismatch:
            self._refuse_unwritten(peer, session, submit, ErrorCode.IDEMPOTENCY_MISMATCH)
            return
        except RequestInUse:
            self._refuse_unwritten(peer, session, submit, ErrorCode.OVERLOADED)
            return
        record = submission.stream
        self._processed(session, submission.last_sequence_id)
        if submission.moved_from is not None:
            self.fenced(submission.moved_from)
        if not submission.replayed:
            self.charged.append(submit.idempotency_key)
            session.streams[record.stream_id] = LiveStream(record.stream_id)
            peer.readers[record.stream_id] = Reader.after(record.stream_id, 0)
        self.tell(
            peer,
            Accepted(
                sequence_id=submit.sequence_id,
                stream_id=record.stream_id,
                durability=Durability.COMMITTED,
                replayed=submission.replayed,
                first_available_id=record.first_available_id,
                last_id=record.last_id,
            ),
        )

    def _refuse_unwritten(self, peer: Peer, session: OwnedSession, submit: Submit, code: ErrorCode) -> None:
        last_id = at_once(self.journal.record_message(session.id, session.epoch, submit.sequence_id))
        self._processed(session, last_id)
        self.tell(peer, Refused(sequence_id=submit.sequence_id, code=code, message=code.value))

    def fingerprint(self, submit: Submit) -> bytes:
        """Tells requests apart."""
        return request_fingerprint(submit)

    def _processed(self, session: OwnedSession, last_sequence_id: int) -> None:
        session.last_sequence_id = max(session.last_sequence_id, last_sequence_id)
        session.news = True

    def cancel(self, peer: Peer, cancel: Cancel) -> None:
        """Ends a stream early, if it has not ended."""
        session = peer.session
        assert session is not None
        last_id = at_once(self.journal.record_message(session.id, session.epoch, cancel.sequence_id))
        self._processed(session, last_id)
        stream = session.streams.get(cancel.stream_id) or self.take_over(session, cancel.stream_id)
        if stream is not None and not stream.ended:
            stream.finish(FinishReason.CANCELLED, session.epoch)

    def resume(self, peer: Peer, resume: Resume) -> None:
        """Says from where the stream's frames follow, or why they don't."""
        session = peer.session
        assert session is not None
        peer.readers.pop(resume.stream_id, None)
        last_id = resume.last_processed_id
        code, record = self.find(session, resume)
        if code is not None:
            first, last = (record.first_available_id, record.last_id) if record else (1, 0)
            rejected = ResumeRejected(
                stream_id=resume.stream_id, code=code, first_available_id=first, last_id=last
            )
            self.tell(peer, rejected)
            return
        assert record is not None
        stream = session.streams.get(resume.stream_id) or self.take_over(session, resume.stream_id)
        if stream is not None:
            stream.started, stream.paused = True, False
        self.tell(
            peer,
            Resumed(
                stream_id=resume.stream_id,
                next_id=last_id + 1,
                epoch=session.epoch,
                first_available_id=record.first_available_id,
                last_id=record.last_id,
                live=record.state is StreamState.LIVE,
            ),
        )
        taken_id = max(self.taken(resume), record.first_available_id - 1)
        peer.readers[resume.stream_id] = Reader.after(
            resume.stream_id, self.replay_from(last_id, record), taken_id
        )

    def taken(self, resume: Resume) -> int:
        """From which frame on a window counts."""
        return resume.last_processed_id if resume.taken_id is None else resume.taken_id

    def replay_from(self, last_processed_id: int, record: StreamRecord) -> int:
        """The frame after which a replay begins."""
        assert last_processed_id >= record.first_available_id - 1
        return last_processed_id

    def find(self, session: OwnedSession, resume: Resume) -> tuple[ResumeFailure | None, StreamRecord | None]:
        """The stream's record, and why it can't be resumed, if it can't."""
        record = None
        try:
            record = at_once(self.journal.find_stream(session.id, resume.stream_id))
            at_once(self.journal.read_frames(session.id, resume.stream_id, resume.last_processed_id, 1))
        except (StreamNotFound, StreamTruncated, CursorAhead) as error:
            return _FAILURES[type(error)], record
        if record.state is StreamState.ABANDONED:
            return ResumeFailure.EXPIRED, record
        text = self.text_of(session, resume.stream_id, resume.last_processed_id)
        if text is not None and resume.digest not in (None, sha256(text.encode())[:16]):
            return ResumeFailure.DIVERGED, record
        return None, record

    def take_over(self, session: OwnedSession, stream_id: int) -> LiveStream | None:
        """Loads a stream that this node doesn't have in memory, to go on with it; None if it has ended."""
        try:
            stored = at_once(self.journal.load_stream(session.id, stream_id))
        except (StreamNotFound, StreamTruncated):
            return None
        if stored.record.state is not StreamState.LIVE:
            return None
        stream = LiveStream.taken_over(stored, self.frames_of(session, stream_id), ended=False)
        session.streams[stream_id] = stream
        return stream

    def acknowledged(self, peer: Peer, stream_id: int, frame_id: int) -> None:
        """The application took frames; a stream that waited for that goes on."""
        if (reader := peer.readers.get(stream_id)) is not None:
            reader.taken = max(reader.taken, frame_id)
            reader.window.on_ack(min(frame_id, reader.next_id - 1), self.clock())
            reader.widest = max(reader.widest, reader.window.size)
            self.wake(peer, reader)

    def wake(self, peer: Peer, reader: Reader) -> None:
        """Lets a paused stream go on once its window is half empty."""
        assert peer.session is not None
        stream = peer.session.streams.get(reader.stream_id)
        if stream is not None and stream.paused and reader.window.used <= 0.5:
            stream.paused = False
