"""A client's sessions and the nursery in which they live: the core of every face, on trio.

A request goes to the current session, or to the one whose stream it continues; where there is none, or it
ended, or its server is leaving, a new one is begun, once for all who wait. Must not know of threads, nor of
other event loops.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import trio

from seedance_sdk.answer_times import AnswerTimes
from seedance_sdk.completion import Completion
from seedance_sdk.endpoints import Endpoints
from seedance_sdk.errors import ClientClosed, SeedanceError, StreamNotFound
from seedance_sdk.generation import Generation
from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.latency_reporter import LatencyReporter
from seedance_sdk.latency_series import Outcome
from seedance_sdk.limits import Limits
from seedance_sdk.parameters import Request, ResumeRequest
from seedance_sdk.patience import Patience
from seedance_sdk.pool import Pool, PoolStatistics
from seedance_sdk.reading import Reading, out_of_time
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.reports import Reports
from seedance_sdk.route import Route
from seedance_sdk.session import Session
from seedance_wire.bookmark import Bookmark
from seedance_wire.messages import UserEvent

__all__ = ["Sessions"]


class Sessions:
    """The sessions of one client, the oldest first.

    Resource handling: use it as an async context manager, once; leaving it is bounded.

    Args:
        endpoints: Where to connect and as whom.
        limits: Every bound.
        clock: Stamps arrivals, in seconds.
        wall_clock: Stamps reports, in seconds since 1970.
        dice: Uniform in [0, 1).
        on_reconnect: Called before each wait for another connection.
        latency: What is observed, where ``report_latency_s`` is given.
        report_latency_s: Report it to the server at such intervals, and at the end.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        limits: Limits,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        dice: Callable[[], float],
        on_reconnect: Callable[[ReconnectDetails], object] | None = None,
        latency: LatencyObservatory | None = None,
        report_latency_s: float | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._limits = limits
        self._clock = clock
        self._dice = dice
        self._on_reconnect = on_reconnect
        self._patience = Patience()
        self._background: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._process = 0
        self._closed = False
        self._reports = Reports(limits, self._send_reports, wall_clock)
        self._latency_reporter: LatencyReporter | None = None
        if latency is not None and report_latency_s is not None:
            self._latency_reporter = LatencyReporter(latency, self._report_latency, report_latency_s)
        self._current: Session | None = None  # where the last request went that named none
        self._pool: Pool[Session] = Pool(limits.max_connections, limits.idle_connection_s)
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._pool)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._pool)

    def statistics(self) -> PoolStatistics:
        """The connections, in numbers."""
        return self._pool.statistics()

    # ---- requests

    async def begin(self, request: Request | ResumeRequest) -> Reading:
        """Sends a request and waits until its stream begins.

        Raises:
            OutOfTime: That took too long.
            SeedanceError: See `seedance_sdk.errors`.

        If cancelled, the generation is cancelled on the server.
        """
        resumed = isinstance(request, ResumeRequest)
        times = AnswerTimes(lambda: self._endpoints.choose().series, self._clock(), resumed=resumed)
        try:
            return await self._begin(request, times)
        except SeedanceError:
            times.ended(Outcome.FAILED)
            raise

    async def _begin(self, request: Request | ResumeRequest, times: AnswerTimes) -> Reading:
        deadline = float("inf")
        if request.deadline_s is not None:
            deadline = trio.current_time() + request.deadline_s
        with trio.move_on_at(min(trio.current_time() + request.timeout_s, deadline)) as scope:
            if isinstance(request, ResumeRequest):
                session = await self._holder_of(request.bookmark)
                return Reading(await session.resume(request, deadline, times))
            return Reading(await self._submit(request, deadline, times))
        assert scope.cancelled_caught  # noqa: S101 - nothing else leads here
        raise out_of_time(deadline, request.timeout_s)

    async def complete(self, request: Request) -> Completion:
        """Sends a request and waits for the whole answer; otherwise as `begin`."""
        return await (await self.begin(request)).collect()

    async def _submit(self, request: Request, deadline: float, times: AnswerTimes) -> Generation:
        while True:
            session = await self._session_for(request)
            queue = request.session_id is not None or not self._pool.may_open
            generation = await session.submit(request, deadline, times, queue=queue)
            if generation is not None:
                return generation

    # ---- reports

    def report(self, action: str, payload: bytes | str, *, user_id: int, timestamp_ms: int | None) -> None:
        """Takes what a user did; see `AsyncSeedanceClient.report`."""
        nursery = self._usable_nursery()
        self._reports.report(action, payload, user_id=user_id, timestamp_ms=timestamp_ms)
        self._reports.start(nursery)

    def _report_latency(self, action: str, payload: str) -> None:
        if self._nursery is not None:
            self._reports.report(action, payload, user_id=0, timestamp_ms=None)
            self._reports.start(self._nursery)

    async def flush_reports(self) -> None:
        """Waits until the server has them all; see `AsyncSeedanceClient.flush_reports`."""
        await self._reports.flush()

    async def _send_reports(self, events: Sequence[UserEvent]) -> None:
        if self._nursery is None:
            raise ClientClosed("the client is closed")
        session = self._pool.choose() or await self._open(self._nursery, None)
        try:
            await session.reports.send(events)
        finally:
            self._note_change()

    # ---- sessions

    async def _session_for(self, request: Request) -> Session:
        nursery = self._usable_nursery()
        if request.session_id:
            for session in self._pool:
                if session.id == request.session_id and not session.over:
                    return session
            raise StreamNotFound("the stream to continue is of no session that this client has")
        if request.session_id is not None:
            if self._current is None or not self._current.accepts_requests:
                raise StreamNotFound("the stream to continue is of a session that this client has no more")
            return self._current
        self._current = self._pool.choose() or await self._open(nursery, None)
        return self._current

    async def _holder_of(self, bookmark: Bookmark) -> Session:
        nursery = self._usable_nursery()
        for session in self._pool:
            if session.id == bookmark.session_id and not session.over:
                return session
        session = await self._open(nursery, bookmark)
        if self._current is None or not self._current.accepts_requests:
            self._current = session
        return session

    def _usable_nursery(self) -> trio.Nursery:
        if self._nursery is None or self._closed:
            need = "is closed" if self._closed else "must be entered first: async with AsyncSeedanceClient(…)"
            raise ClientClosed(f"the client {need}")
        if self._process != os.getpid():
            raise ClientClosed("the client was made before a fork; make one in each process")
        return self._nursery

    async def _open(self, nursery: trio.Nursery, bookmark: Bookmark | None) -> Session:
        """Begins another session as soon as there may be another connection, or returns one that has room."""
        while not self._pool.may_open:
            if (spare := self._pool.spare()) is not None:
                spare.sleep()
            await self._changed.wait()
            if bookmark is None and (session := self._pool.choose()) is not None:
                return session
        idle = [session for session in self._pool if not session.load]
        for session in idle[: max(0, len(self._pool) + 1 - self._limits.max_sessions)]:
            session.retire()
        session = Session(
            Route(self._endpoints),
            self._endpoints.subprotocol,
            self._limits,
            self._clock,
            self._patience,
            bookmark=bookmark,
            dice=self._dice,
            on_reconnect=self._on_reconnect,
            on_change=self._note_change,
        )
        self._pool.add(session)
        nursery.start_soon(self._run, session)
        return session

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            self._pool.remove(session)
            self._note_change()

    def _note_change(self) -> None:
        self._pool.note(trio.current_time())
        self._changed.set()
        self._changed = trio.Event()

    async def _close_idle(self) -> None:
        """Closes connections that nobody needs, until it is cancelled."""
        while True:
            for session in self._pool.due(trio.current_time()):
                if sum(not each.over for each in self._pool) > self._limits.max_sessions:
                    session.retire()
                else:
                    session.sleep()
            changed = self._changed
            with trio.move_on_at(self._pool.next_due_s):
                await changed.wait()

    # ---- its life

    async def __aenter__(self) -> Self:
        if self._nursery is not None or self._closed:
            raise ClientClosed("a client can be entered once; make another")
        self._process = os.getpid()
        self._background = trio.open_nursery()
        self._nursery = await self._background.__aenter__()
        self._nursery.start_soon(self._close_idle)
        self._nursery.start_soon(self._patience.run)
        if self._latency_reporter is not None:
            self._nursery.start_soon(self._latency_reporter.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        background, nursery = self._background, self._nursery
        self._closed = True
        if background is None or nursery is None:
            return None
        # Shielded, but bounded by close_timeout_s; sessions of a caller that is cancelled have ended already.
        with trio.CancelScope(shield=True):
            if self._latency_reporter is not None:
                self._latency_reporter.report_news()
            await self._reports.finish(self._limits.close_timeout_s)
            async with trio.open_nursery() as goodbyes:
                for session in list(self._pool):
                    goodbyes.start_soon(session.aclose)
        nursery.cancel_scope.cancel()
        # A nursery wraps what its body raises in a group. The caller did not ask for a nursery, so their own
        # exceptions pass it by; only cancellation has to go through it.
        if _has_cancelled(error):
            return await background.__aexit__(kind, error, traceback)
        await background.__aexit__(None, None, None)
        return None


def _has_cancelled(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)
