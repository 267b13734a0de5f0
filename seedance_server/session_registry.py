"""All sessions that this process has in memory, and the one nursery in which their streams run.

Sessions are here while a connection or a running stream holds them; all others are in the journal alone and
come from there when their client shows the token. A claim is one transaction in the journal, and the newest
wins: its epoch is the highest. Unknown, another tenant's and a wrong token are one answer, which is a new
session.

It must not know sockets, encodings or what a stream says.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import structlog
import trio
from attrs import frozen

from seedance_server.errors import SessionLost
from seedance_server.frame_courier import FrameCourier
from seedance_server.journal.errors import SessionNotFound
from seedance_server.journal.interface import Journal
from seedance_server.journal.records import NewSession, SessionRecord
from seedance_server.session import Holder, Session

__all__ = ["Claimant", "Entrance", "RegistryStatistics", "SessionRegistry"]

_log = structlog.get_logger(__name__)

_TOKEN_BYTES = 32


class Claimant(Holder, Protocol):
    """A connection that wants a session."""

    def open(self, session: Session, epoch: int) -> None:
        """It has it from now on."""


@frozen
class Entrance:
    """What a connection is told when it has its session.

    Attributes:
        session: The session.
        epoch: Under which the connection holds it.
        token: What claims it again.
        is_present: Whether it is the one that was asked for.
        last_stream_id: The last number of its streams so far.
    """

    session: Session
    epoch: int
    token: bytes
    is_present: bool
    last_stream_id: int


@frozen
class RegistryStatistics:
    """What is in memory now.

    Attributes:
        sessions: Sessions.
        streams: Streams in them that aren't ended.
        parked: Those of them that are not in the engine.
        unread: Those of them that nobody reads.
    """

    sessions: int
    streams: int
    parked: int
    unread: int


class SessionRegistry:
    """Creates sessions, hands them to whoever shows their token, and lets them run.

    Args:
        journal: Where they are kept; open while this runs.
        new_session_id: Makes a name for each session, never the same again.
        entropy: Random bytes for tokens, so many.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        new_session_id: Callable[[], str],
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        on_events: Callable[[], None] | None = None,
    ) -> None:
        self._journal = journal
        self._courier = FrameCourier(journal)
        self._new_session_id = new_session_id
        self._entropy = entropy
        self._on_events = on_events
        self._sessions: dict[str, Session] = {}
        self._claims: Counter[str] = Counter()
        self._claim_settled = trio.Event()
        self._nursery: trio.Nursery | None = None

    def statistics(self) -> RegistryStatistics:
        """What is in memory now."""
        streams = [stream for session in self._sessions.values() for stream in session.streams]
        return RegistryStatistics(
            sessions=len(self._sessions),
            streams=len(streams),
            parked=sum(stream.is_parked for stream in streams),
            unread=sum(stream.readers == 0 for stream in streams),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns the streams until cancelled; what isn't ended then stays in the journal as it is."""
        recovered = await self._journal.recover()  # whoever had them before is fenced
        if recovered:
            streams = sum(len(claimed.streams) for claimed in recovered)
            _log.info("sessions wait for their clients", sessions=len(recovered), streams=streams)
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._courier.run)
            task_status.started()
            await trio.sleep_forever()

    async def enter(
        self, tenant: str, session_id: str | None, token: bytes | None, claimant: Claimant
    ) -> Entrance:
        """Gives a connection the session of its tenant that it names, or a new one.

        Raises:
            Superseded: A newer connection has that session already.
            SessionLost, JournalError: The journal can't serve.

        If cancelled, the connection has no session.
        """
        if session_id is not None and token is not None:
            try:
                return await self.claim(tenant, session_id, token, claimant)
            except SessionNotFound:
                _log.info("session not found", session=session_id)
        return await self.create(tenant, self._new_session_id(), self._entropy(_TOKEN_BYTES), claimant)

    async def create(self, tenant: str, session_id: str, token: bytes, claimant: Claimant) -> Entrance:
        """Gives a connection a new session of this name.

        Raises:
            ValueError: There is one of that name, or there was and its streams are remembered.
            SessionLost, JournalError: The journal can't serve.
        """
        new = NewSession(session_id=session_id, tenant=tenant, token_hash=hashlib.sha256(token).digest())
        record = await self._journal.create_session(new)
        return self._hand_over(record, token, claimant, is_present=False)

    async def claim(self, tenant: str, session_id: str, token: bytes, claimant: Claimant) -> Entrance:
        """Gives a connection the session that it names.

        Raises:
            SessionNotFound: There is none of this tenant, name and token.
            Superseded, SessionLost, JournalError: As from `enter`.
        """
        self._claims[session_id] += 1
        try:
            claimed = await self._journal.claim_session(session_id, tenant, hashlib.sha256(token).digest())
            # No checkpoint from here: writes that met this claim wait for the new epoch to be in place.
            return self._hand_over(claimed.session, token, claimant, is_present=True)
        finally:
            self._claims[session_id] -= 1
            if not self._claims[session_id]:
                del self._claims[session_id]
            self._claim_settled.set()
            self._claim_settled = trio.Event()

    def _hand_over(
        self, record: SessionRecord, token: bytes, claimant: Claimant, *, is_present: bool
    ) -> Entrance:
        session = self._sessions.get(record.session_id)
        if session is not None and record.epoch - session.epoch > self._claims[session.id]:
            session.lose("somebody else had the session")  # so what is in memory isn't what there is
            session = None
        if session is None:
            if self._nursery is None:
                raise SessionLost
            session = Session(
                record,
                journal=self._journal,
                courier=self._courier,
                nursery=self._nursery,
                claims_settled=self._claims_settled,
                lose_other=self._lose,
                on_unused=self._forget,
                on_events=self._on_events,
            )
            self._sessions[session.id] = session
        session.attach(claimant, record)
        claimant.open(session, record.epoch)
        return Entrance(session, record.epoch, token, is_present, record.next_stream_id - 1)

    async def _claims_settled(self, session_id: str) -> None:
        while self._claims[session_id]:
            await self._claim_settled.wait()

    def _lose(self, session_id: str) -> None:
        if (session := self._sessions.get(session_id)) is not None:
            session.lose("a stream of it goes on in another session")

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
