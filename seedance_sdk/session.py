"""One session with a server: the requests and streams that share it, whatever becomes of its connections.

`ClientSession` decides what is resent and which frames are let through, `Link` keeps it connected; here each
request finds its place, its answer and its end. Only what is final ends the session, and then every live
stream with a typed error. Must not know who reads a stream.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version

import trio
from attrs import evolve

from seedance_sdk.answer_times import AnswerTimes
from seedance_sdk.causes import error_of_close
from seedance_sdk.circuit_breaker import CircuitState
from seedance_sdk.errors import ClientClosed, InvalidRequest, SeedanceError, Unsupported
from seedance_sdk.generation import Generation
from seedance_sdk.generations import Generations
from seedance_sdk.limits import Limits
from seedance_sdk.link import Link
from seedance_sdk.outbox import Outbox
from seedance_sdk.parameters import Request, ResumeRequest
from seedance_sdk.patience import Patience
from seedance_sdk.reconnect import Outage, ReconnectDetails
from seedance_sdk.report_sender import ReportSender
from seedance_sdk.route import Route
from seedance_wire.bookmark import Bookmark
from seedance_wire.client_session import ClientSession, StreamLost
from seedance_wire.errors import LocalProtocolError
from seedance_wire.messages import Checkpoint, Delta, GoAway, Hello, Refused, Welcome
from seedance_wire.running_digest import RunningDigest

__all__ = ["Session"]


class Session:
    """One session; use it from one trio loop only.

    Args:
        route: Where its connections go.
        subprotocol: The encoding that they agree on.
        limits: Every bound.
        clock: Seconds on a clock that does not go back; stamps arrivals.
        patience: Ends what its readers wait for too long.
        bookmark: The session to take over; None for a new one.
        dice: Uniform in [0, 1): the jitter of the waits.
        on_reconnect: Called before each wait for another connection.
        on_change: Called when what it carries has changed, or whether it is connected.
    """

    def __init__(
        self,
        route: Route,
        subprotocol: str,
        limits: Limits,
        clock: Callable[[], float],
        patience: Patience,
        *,
        bookmark: Bookmark | None = None,
        dice: Callable[[], float] = random.random,
        on_reconnect: Callable[[ReconnectDetails], object] | None = None,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        self._limits = limits
        self._on_reconnect = on_reconnect
        self._on_change = on_change
        self._route = route
        self._lost_at: float | None = None  # without a connection since then
        self._clock = clock
        self._core = ClientSession(
            subprotocol,
            hello=Hello(sdk_name="seedance-sdk-python", sdk_version=version("seedance-sdk")),
            max_message_bytes=limits.max_message_bytes,
            max_unconfirmed=4 * limits.max_streams,  # a SUBMIT and a CANCEL for each stream are half of it
            bookmark=bookmark,
        )
        self._first_bookmark = bookmark
        self._outbox = Outbox(self._core, limits.ack_interval_s, limits.ack_delay_s)
        outage = Outage(limits.reconnect_timeout_s, dice=dice)
        self._link = Link(route, self._core, self._outbox, self, limits, outage, self._note_attempt)
        self.reports = ReportSender(self._core, self._outbox, want=self._link.want)
        self._arriving: set[Generation] = set()  # they have no place yet
        self._patience = patience
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._error: SeedanceError | None = None
        self._draining = False
        self._settled = trio.Event()  # it drains no more: the connection is over
        self._generations = Generations(self._leave_if_drained)

    @property
    def id(self) -> str:
        """What the server calls it; "" before it was greeted."""
        return self._core.session_id or ""

    @property
    def over(self) -> bool:
        """Whether it is of no use any more."""
        return self._error is not None

    @property
    def accepts_requests(self) -> bool:
        """Whether a new request should be tried here; without a connection it waits for the next one."""
        return not (self.over or self._draining or self._stranded)

    @property
    def _stranded(self) -> bool:
        """Whether it has to wait for an endpoint that fails, and new requests need not."""
        circuit_open = self._route.place.circuit.state is CircuitState.OPEN
        return self._route.bound and circuit_open and not self._link.connected

    @property
    def load(self) -> int:
        """What it carries: requests, streams, reports on their way; see `PoolMember`."""
        return len(self._arriving) + len(self._generations) + self.reports.waiting

    @property
    def capacity(self) -> int:
        """Streams that fit on its connection, as far as that is known; see `PoolMember`."""
        places = self._generations.places.total_tokens
        return int(min(places or self._limits.max_streams, self._limits.max_streams))

    @property
    def connected(self) -> bool:
        """Whether its server has greeted it on a connection that stands; see `PoolMember`."""
        return self._link.connected

    @property
    def needed(self) -> int:
        """How many requests and streams need a connection; see `LinkOwner`."""
        return len(self._arriving) + self._generations.read + self.reports.waiting

    async def run(self) -> None:
        """Keeps connected while that is needed; never raises but when cancelled."""
        error: SeedanceError | None = None
        try:
            with self._scope:
                error = await self._link.run()
        finally:
            self._fail(error or ClientClosed("the client was closed"))
            self._ended.set()

    async def aclose(self) -> None:
        """Cancels live streams, says BYE if none is detached, and closes in ``close_timeout_s`` at most."""
        self.retire()
        with trio.move_on_after(self._limits.close_timeout_s):
            await self._ended.wait()
        self._scope.cancel()
        await self._ended.wait()

    def sleep(self) -> None:
        """Closes the connection, as nobody needs it; the next request makes another."""
        self._link.leave(error_of_close(1000, "idle"))

    def retire(self) -> None:
        """Begins to close and waits for nothing."""
        detached = self._generations.read < len(self._generations)
        for stream_id in self._generations.uncancelled():
            self._outbox.add(partial(self._core.cancel, stream_id))
        self._fail(ClientClosed("the client was closed"))
        self._outbox.finish(bye=not detached)
        if not self._link.connected:
            self._scope.cancel()

    def _fail(self, error: SeedanceError) -> None:
        """Ends everything that waits, for good; the first error counts."""
        if self._error is None:
            self._error = error
        self._generations.fail(self._error)
        self.reports.fail(self._error)
        self._link.opened.set()
        self._settled.set()
        self._route.place.circuit.wake()

    async def submit(
        self, request: Request, deadline: float, times: AnswerTimes | None = None, *, queue: bool = True
    ) -> Generation | None:
        """Asks for a generation and waits until its stream begins.

        Args:
            request: What to ask.
            deadline: When the answer is of no use any more, on trio's clock.
            times: Of the request, since its call; None where it begins now.
            queue: Whether to wait for a place where the connection has none.

        Returns:
            The generation, or None where this session takes no requests for now and nothing was sent. One
            that continues a stream of this session waits instead.

        Raises:
            SeedanceError: The server refused it, or the connection could not be made or restored.

        If cancelled, the generation is cancelled too, as soon as the server answers.
        """
        generation = self._make(request, deadline, times)
        self._arriving.add(generation)
        self._on_change()
        try:
            with await self._turn_of(request):
                if self._stranded and request.session_id is None:
                    return None
                return await self._ask(generation, request, queue=queue)
        finally:
            self._arriving.discard(generation)
            self._on_change()

    async def _turn_of(self, request: Request) -> AbstractContextManager[None]:
        """Waits until this session may ask; returns a context for as long as it does."""
        self._link.want()
        await self._link.opened.wait()
        while self._draining and request.session_id is not None:
            await self._settled.wait()
        self._raise_if_over()

        def waits_for_nothing() -> bool:
            elsewhere = request.session_id is None and not self.accepts_requests
            return elsewhere or self.over or self._draining or self._link.connected

        while True:
            circuit = self._route.place.circuit
            turn = await circuit.turn(waits_for_nothing)
            if self._route.place.circuit is circuit or not self.accepts_requests:
                return turn
            with turn:  # the session has moved to another endpoint meanwhile
                pass

    async def _ask(self, generation: Generation, request: Request, *, queue: bool) -> Generation | None:
        places = self._generations.places
        if not (queue or places.available_tokens):
            return None
        await places.acquire_on_behalf_of(generation)
        if self._draining:
            places.release_on_behalf_of(generation)
            return None
        self._raise_if_over()
        self._arriving.discard(generation)
        self._generations.begin(generation)
        self._link.want()
        self._outbox.add(partial(self._submit, generation, request))
        await self._answered(generation)
        return generation if generation.sent else None

    async def resume(
        self, request: ResumeRequest, deadline: float, times: AnswerTimes | None = None
    ) -> Generation:
        """Goes on with a stream of this session from a bookmark.

        Raises:
            InvalidRequest: The stream goes on here already.
            SeedanceError: The server does not have it, or the connection could not be made or restored.

        If cancelled, the generation is cancelled too.
        """
        self._raise_if_over()
        generation = self._make(request, deadline, times)
        generation.sent = True
        number = request.bookmark.stream_id
        if not self._made_from(request.bookmark):
            try:
                number = self._core.resume(request.bookmark)
            except LocalProtocolError:
                raise InvalidRequest("this client has that stream already", field="bookmark") from None
            self._outbox.wake()
        self._generations.take_up(number, generation)
        self._on_change()
        self._link.want()
        await self._answered(generation)
        return generation

    def _make(
        self, request: Request | ResumeRequest, deadline: float, times: AnswerTimes | None
    ) -> Generation:
        resumed = isinstance(request, ResumeRequest)
        times = times or AnswerTimes(lambda: self._route.place.series, self._clock(), resumed=resumed)
        times.series = lambda: self._route.place.series
        return Generation(request, deadline, self, self._limits, self._clock, times, self._patience)

    def _made_from(self, bookmark: Bookmark) -> bool:
        """Whether the session began with this very bookmark; true once."""
        if bookmark is not self._first_bookmark:
            return False
        self._first_bookmark = None
        return True

    async def _answered(self, generation: Generation) -> None:
        try:
            await generation.answered.wait()
        except trio.Cancelled:
            generation.abandon()
            raise
        generation.raise_if_refused()

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise copy.copy(self._error) from self._error

    def request_cancel(self, generation: Generation) -> None:
        """Has CANCEL sent once the stream has begun; see `GenerationOwner`."""
        if generation.stream_id and not generation.cancel_requested:
            generation.cancel_requested = True
            self._outbox.add(partial(self._cancel, generation))
            self._link.want()

    def note_processed(self, stream_id: int, frame_id: int) -> None:
        """Has an ACK sent with the next batch of them; see `GenerationOwner`."""
        if self._error is None:
            self._outbox.note_processed(stream_id, frame_id)

    def make_bookmark(
        self, stream_id: int, *, last_processed_id: int, offset: int, digest: RunningDigest
    ) -> Bookmark:
        """Names a place in a stream for another client; see `GenerationOwner`."""
        try:
            return self._core.bookmark(
                stream_id, last_processed_id=last_processed_id, offset=offset, digest=digest
            )
        except LocalProtocolError as error:
            raise Unsupported(f"nobody can go on with this stream: {error}") from None

    def _submit(self, generation: Generation, request: Request) -> None:
        if generation.discarding or generation.ended or self._draining:
            generation.answered.set()  # given up before its turn, or GOAWAY came: another session can have it
            self._generations.leave(generation)
        else:
            submit = evolve(request.submit, deadline_ms=generation.deadline_ms)
            self._generations.ask(generation, partial(self._core.submit, submit))

    def _cancel(self, generation: Generation) -> None:
        if not generation.ended:
            self._core.cancel(generation.stream_id)

    def handle(self, event: object) -> bool:
        """Takes one event; see `LinkOwner`."""
        match event:
            case Delta():  # nearly all of them
                self._generations.deliver(event)
                return True
            case Welcome():
                self._begin(event)
            case GoAway():
                self._move(event)
            case StreamLost():
                self._generations.lose(event, self._link.ended_by)
            case Checkpoint():
                return self.reports.note_checkpoint()
            case Refused() if self.reports.refused(event):
                return True
            case _:
                return self._generations.handle(event, self.id)
        return False

    def _begin(self, welcome: Welcome) -> None:
        if self._lost_at is not None:
            self._generations.note_reconnect(trio.current_time() - self._lost_at)
            self._lost_at = None
        self._generations.places.total_tokens = min(welcome.limits.max_streams, self._limits.max_streams)
        self._outbox.keep_pace(welcome.limits)
        self._link.note_welcome()
        self._on_change()

    def shed(self, error: SeedanceError) -> None:
        """Fails the longest request that waits for its answer; see `LinkOwner`."""
        number = self._generations.shed(error)
        if number is not None:
            self._core.withdraw(number)

    def _move(self, event: GoAway) -> None:
        self._route.leaves(event.reconnect_to)
        self._draining = True
        self._settled = trio.Event()
        self._leave_if_drained()

    def _note_attempt(self, details: ReconnectDetails) -> None:
        self._generations.note_attempt(details)
        if self._on_reconnect is not None:
            self._on_reconnect(details)

    def disconnected(self) -> None:
        """The connection is over; see `LinkOwner`."""
        if self._lost_at is None:
            self._lost_at = trio.current_time()
        self._generations.note_disconnected()
        self._draining = False
        self._settled.set()
        self._on_change()

    def _leave_if_drained(self) -> None:
        """A server that leaves need not wait for us; the session goes on elsewhere when it is needed."""
        if self._draining and not len(self._generations):
            self._link.leave(error_of_close(1001, "the server leaves"))
        self._on_change()
