"""The sessions that HTTP requests have open: each held once, however many read from it.

An answer is a session of its own, named after it. Whoever asks for it holds it together with those who do
already; with the last one it is let go, and its time to be asked for again begins. When somebody else takes
it, or the journal fails under it, everybody who reads it is told to stop.

It must not know requests, frames or how answers look.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
from attrs import define, field

from seedance_server.errors import SessionLost
from seedance_server.http.answer_id import AnswerId
from seedance_server.journal.errors import SessionNotFound
from seedance_server.session import Session
from seedance_server.session_registry import SessionRegistry
from seedance_wire.errors import CloseCode

__all__ = ["AnswerGone", "Hold", "Holds"]


class AnswerGone(Exception):  # noqa: N818 - says what happened; becomes an HTTP answer
    """There was such an answer, and nothing of it is kept."""


@define(eq=False)
class Hold:
    """One session, held.

    Attributes:
        streams: How many streams it has.
        users: Requests that hold it.
    """

    streams: int = 0
    users: int = 0
    opening: trio.Lock = field(factory=trio.Lock)
    _session: Session | None = None
    _readers: set[trio.CancelScope] = field(factory=set)

    @property
    def session(self) -> Session:
        """The session; once it is open.

        Raises:
            SessionLost: It isn't ours any more.
        """
        if self._session is None:
            raise SessionLost
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    def open(self, session: Session, epoch: int) -> None:  # noqa: ARG002 - frames carry none over HTTP
        """See `Claimant`."""
        self._session = session

    def end(self, code: CloseCode, reason: str) -> None:  # noqa: ARG002 - HTTP has no word for either
        """See `Holder`: whoever reads stops."""
        self._session = None
        for scope in tuple(self._readers):
            scope.cancel()

    def let_go(self) -> None:
        """Nobody needs it any more."""
        if self._session is not None:
            self._session.detach(self)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Cancels what is done in here if the session is lost.

        Raises:
            SessionLost: It was.
        """
        with trio.CancelScope() as scope:
            self._readers.add(scope)
            try:
                yield
            finally:
                self._readers.discard(scope)
        if scope.cancelled_caught:
            raise SessionLost


class Holds:
    """All of them.

    Args:
        registry: Where sessions are.
    """

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self._holds: dict[tuple[str, str], Hold] = {}

    @asynccontextmanager
    async def held(self, tenant: str, answer: AnswerId, *, is_new: bool) -> AsyncIterator[Hold]:
        """Holds an answer's session.

        Args:
            tenant: Whose it is.
            answer: Which.
            is_new: Whether to begin it if there is none.

        Raises:
            SessionNotFound: There is none, and it isn't to be begun.
            AnswerGone: It was there before, and can't be begun again.
            SessionLost, JournalError: The journal can't serve.
        """
        key = (tenant, answer.name)
        hold = self._holds.setdefault(key, Hold())
        hold.users += 1
        try:
            async with hold.opening:
                if not hold.is_open:
                    await self._open(tenant, answer, hold, is_new=is_new)
            yield hold
        finally:
            hold.users -= 1
            if not hold.users:
                del self._holds[key]
                hold.let_go()

    async def _open(self, tenant: str, answer: AnswerId, hold: Hold, *, is_new: bool) -> None:
        try:
            entrance = await self._registry.claim(tenant, answer.name, answer.token, hold)
        except SessionNotFound:
            if not is_new:
                raise
            try:
                entrance = await self._registry.create(tenant, answer.name, answer.token, hold)
            except ValueError as error:
                raise AnswerGone from error
        hold.streams = max(hold.streams, entrance.last_stream_id)
