"""One session over one connection: HELLO and WELCOME, then many streams until the connection ends.

Two tasks serve any number of streams: a reader that never waits for an application, and a writer that alone
sends. Everything that ends the connection ends every live stream with a typed error; the session is of no
use then, and its owner makes another. Must not know who reads a stream.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.metadata import version
from itertools import islice

import trio
from attrs import evolve

from seedance_sdk.errors import (
    ClientClosed,
    ConnectFailed,
    InvalidRequest,
    ProtocolError,
    RequestTooLarge,
    SeedanceError,
    error_of_wire,
)
from seedance_sdk.generation import Generation
from seedance_sdk.limits import Limits
from seedance_sdk.parameters import Request
from seedance_sdk.transport import Transport
from seedance_wire.connection import Connection
from seedance_wire.envelope import MAX_ACK_ENTRIES
from seedance_wire.errors import LocalProtocolError, MessageTooLargeError, RemoteProtocolError
from seedance_wire.messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Delta,
    Error,
    Flush,
    Frame,
    GoAway,
    Hello,
    Refused,
    Welcome,
)
from seedance_wire.state import ConnectionState, Role

__all__ = ["Session"]


class Session:
    """One session; use it from one trio loop only.

    Args:
        connect: Makes the transport when entered.
        subprotocol: The encoding that the transport agrees on.
        limits: Every bound.
        clock: Seconds on a clock that does not go back; stamps arrivals.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Transport]],
        subprotocol: str,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._connect = connect
        self._limits = limits
        self._clock = clock
        self._connection = Connection(
            Role.CLIENT,
            subprotocol,
            max_message_bytes=limits.max_message_bytes,
            max_streams=limits.max_streams,
        )
        self._scope = trio.CancelScope()
        self._opened = trio.Event()  # WELCOME has come, or never will
        self._ended = trio.Event()
        self._welcome: Welcome | None = None
        self._error: SeedanceError | None = None
        self._draining = False
        self._closing = False
        self._slots = trio.Semaphore(0)  # one for each stream that the server allows, from WELCOME on
        self._live: set[Generation] = set()
        self._submitted: dict[int, Generation] = {}  # by sequence id, until answered
        self._streams: dict[int, Generation] = {}  # by stream id, until their last frame
        # Messages are made when their turn comes, so that what was cancelled before is never sent. At most
        # one SUBMIT and one CANCEL for each live generation.
        self._outbox: deque[Callable[[], bytes | str | None]] = deque()
        self._acks: dict[int, int] = {}
        self._next_ack_at = 0.0
        self._work = trio.Event()

    @property
    def accepts_requests(self) -> bool:
        """Whether a new request may be tried here."""
        return not (self._draining or self._closing or self._error is not None)

    @property
    def welcome(self) -> Welcome | None:
        """What the server said of itself, once it has."""
        return self._welcome

    # ---- its life

    async def run(self) -> None:
        """Connects, and serves until the connection ends; never raises but when cancelled."""
        try:
            with self._scope:
                async with self._connect() as transport:
                    await self._serve(transport)
        except SeedanceError as error:
            self._fail(error)
        finally:
            self._fail(ClientClosed("the client was closed"))
            self._ended.set()

    async def _serve(self, transport: Transport) -> None:
        self._outbox.append(partial(self._connection.send, _hello()))
        async with trio.open_nursery() as nursery:

            async def until_over(task: Callable[[Transport], Awaitable[None]]) -> None:
                try:
                    await task(transport)
                except SeedanceError as error:
                    self._fail(error)
                except RemoteProtocolError as error:
                    message = f"the server broke the protocol: {error}"
                    self._fail(ProtocolError(message, close_code=error.close_code))
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_over, self._read)
            nursery.start_soon(until_over, self._write)
            with trio.move_on_after(self._limits.handshake_timeout_s) as patience:
                await self._opened.wait()
            if patience.cancelled_caught:
                waited = f"{self._limits.handshake_timeout_s:g} s"
                self._fail(ConnectFailed(f"the server did not answer HELLO within {waited}"))
                nursery.cancel_scope.cancel()
        if isinstance(self._error, ProtocolError):
            await transport.aclose(self._error.close_code or 4400)
        else:
            await transport.aclose()

    async def aclose(self) -> None:
        """Says BYE and closes, in ``close_timeout_s`` at most; live streams get `ClientClosed`."""
        self._fail(ClientClosed("the client was closed"))
        self._closing = True
        self._work.set()
        with trio.move_on_after(self._limits.close_timeout_s):
            if self._welcome is not None:
                await self._ended.wait()
        self._scope.cancel()
        await self._ended.wait()

    def _fail(self, error: SeedanceError) -> None:
        """Ends everything that waits; the first error counts, since the others follow from it."""
        if self._error is None:
            self._error = error
        for generation in self._live:
            generation.fail(self._error)
        self._live.clear()
        self._submitted.clear()
        self._streams.clear()
        self._opened.set()
        for _ in range(self._slots.statistics().tasks_waiting):
            self._slots.release()

    # ---- requests

    async def submit(self, request: Request, deadline: float) -> Generation | None:
        """Asks for a generation and waits until its stream begins.

        Args:
            request: What to ask.
            deadline: When the answer is of no use any more, on trio's clock.

        Returns:
            The generation, or None where this session has stopped taking requests and nothing was sent.

        Raises:
            SeedanceError: The server refused it, or the connection could not be made or ended.

        If cancelled, the generation is cancelled too, as soon as the server answers.
        """
        await self._opened.wait()
        self._raise_if_over()
        await self._slots.acquire()
        if self._draining:
            self._slots.release()
            return None
        self._raise_if_over()
        generation = Generation(request, deadline, self, self._limits, self._clock)
        self._live.add(generation)
        self._outbox.append(partial(self._encode_submit, generation))
        self._work.set()
        try:
            await generation.answered.wait()
        except trio.Cancelled:
            generation.abandon()
            raise
        generation.raise_if_refused()
        return generation if generation.sent else None

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise copy.copy(self._error) from self._error

    def request_cancel(self, generation: Generation) -> None:
        """Has CANCEL sent once the stream has begun; see `GenerationOwner`."""
        if generation.stream_id and not generation.cancel_requested:
            generation.cancel_requested = True
            self._outbox.append(partial(self._encode_cancel, generation))
            self._work.set()

    def note_processed(self, stream_id: int, frame_id: int) -> None:
        """Has an ACK sent with the next batch of them; see `GenerationOwner`."""
        if self._error is None:
            self._acks[stream_id] = frame_id
            self._work.set()

    # ---- the writer

    async def _write(self, transport: Transport) -> None:
        while self._connection.state is not ConnectionState.ERROR:
            if self._outbox:
                data = self._outbox.popleft()()
                if data is not None:
                    await transport.send(data)
            elif self._acks and trio.current_time() >= self._next_ack_at:
                await transport.send(self._connection.send(self._take_acks()))
                self._next_ack_at = trio.current_time() + self._limits.ack_interval_s
            elif self._acks:
                await self._wait_for_work(self._next_ack_at)
            elif self._closing:
                await transport.send(self._connection.send(Bye()))
                return
            else:
                await self._wait_for_work(float("inf"))

    async def _wait_for_work(self, deadline: float) -> None:
        self._work = trio.Event()
        with trio.move_on_at(deadline):
            await self._work.wait()

    def _take_acks(self) -> Ack:
        processed = tuple(islice(self._acks.items(), MAX_ACK_ENTRIES))
        for stream_id, _ in processed:
            del self._acks[stream_id]
        return Ack(processed=processed)

    def _encode_submit(self, generation: Generation) -> bytes | str | None:
        if generation.discarding or generation.ended:  # given up before its turn: nothing is sent
            self._forget(generation)
            return None
        if self._draining:  # GOAWAY came before its turn: another session can have it
            generation.answered.set()
            self._forget(generation)
            return None
        submit = evolve(
            generation.request.submit,
            sequence_id=self._connection.next_sequence_id,
            deadline_ms=generation.deadline_ms,
        )
        try:
            data = self._connection.send(submit)
        except MessageTooLargeError as error:
            generation.fail(RequestTooLarge(f"the request is too large: {error}"))
        except LocalProtocolError as error:
            generation.fail(InvalidRequest(str(error)))
        else:
            generation.sent = True
            self._submitted[submit.sequence_id] = generation
            return data
        self._forget(generation)
        return None

    def _encode_cancel(self, generation: Generation) -> bytes | str | None:
        if generation.ended:
            return None
        sequence_id = self._connection.next_sequence_id
        return self._connection.send(Cancel(sequence_id=sequence_id, stream_id=generation.stream_id))

    # ---- the reader

    async def _read(self, transport: Transport) -> None:
        while True:
            data = await transport.receive()
            try:
                self._connection.receive_data(data)
            finally:  # what came before a fault is sound
                while (event := self._connection.next_event()) is not None:
                    self._dispatch(event)

    def _dispatch(self, event: object) -> None:
        match event:
            case Delta() | Flush() | Error():
                self._deliver(event)
            case Welcome():
                self._welcome = event
                for _ in range(min(event.limits.max_streams, self._limits.max_streams)):
                    self._slots.release()
                self._opened.set()
            case Accepted():
                accepted = self._submitted.pop(event.sequence_id, None)
                if accepted is not None:  # else it was failed while the session closes; so below
                    self._streams[event.stream_id] = accepted
                    accepted.accept(event)
            case Refused():
                refused = self._submitted.pop(event.sequence_id, None)
                if refused is not None:
                    refused.fail(error_of_wire(event))
                    self._forget(refused)
            case GoAway():
                self._draining = True
                self._close_if_drained()

    def _deliver(self, frame: Frame) -> None:
        generation = self._streams.get(frame.stream_id)
        if generation is None:
            return
        generation.deliver(frame)
        if generation.ended:
            del self._streams[frame.stream_id]
            self._forget(generation)

    def _forget(self, generation: Generation) -> None:
        self._live.discard(generation)
        self._slots.release()
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        """A server that leaves need not wait for us, and we hold no connection that is of no use."""
        if self._draining and not self._live:
            self._closing = True
            self._work.set()


def _hello() -> Hello:
    return Hello(sdk_name="seedance-sdk-python", sdk_version=version("seedance-sdk"))
