"""What a session still has to say, in the order in which it must be said; outlives its connections.

Requests and cancels first, then acknowledgements, one message in an interval however many frames were taken,
and BYE last. A request is made only when its turn comes, so that one which was given up before leaves no
trace. While there is no connection everything waits: a step for each request at most, and one number for each
stream. Must not know who is at the other end, nor what a step does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

import trio

from seedance_wire.client_session import ClientSession
from seedance_wire.envelope import MAX_ACK_ENTRIES

__all__ = ["Outbox"]


class Outbox:
    """The sending half of one session.

    Args:
        core: What makes messages.
        ack_interval_s: Least time between two ACK messages, in seconds.
    """

    def __init__(self, core: ClientSession, ack_interval_s: float) -> None:
        self._core = core
        self._ack_interval_s = ack_interval_s
        self._steps: deque[Callable[[], object]] = deque()
        self._acks: dict[int, int] = {}
        self._next_ack_at = 0.0
        self._open = False
        self._broken = False
        self._finishing = False
        self._bye = True
        self._work = trio.Event()

    @property
    def finishing(self) -> bool:
        """Whether the last word is said or due."""
        return self._finishing

    def add(self, step: Callable[[], object]) -> None:
        """Has ``step`` called when its turn comes; what it gives to the core is sent then."""
        self._steps.append(step)
        self._work.set()

    def note_processed(self, stream_id: int, frame_id: int) -> None:
        """Has this acknowledged with the next ACK; the last number of a stream counts."""
        self._acks[stream_id] = frame_id
        self._work.set()

    def finish(self, *, bye: bool) -> None:
        """Has the connection left after everything else was said, with BYE or, for a while, without."""
        self._finishing = True
        self._bye = bye
        self._work.set()

    def open(self) -> None:
        """The server has greeted: what waits may be sent."""
        self._open = True
        self._work.set()

    def wake(self) -> None:
        """The core may have something to send."""
        self._work.set()

    def shut(self) -> None:
        """The connection is over or must be: nothing more is sent on it."""
        self._open = False
        self._broken = True

    async def serve(
        self,
        hello: bytes | str,
        send: Callable[[bytes | str], Awaitable[None]],
        drain: Callable[[], None],
    ) -> None:
        """Says HELLO on a new connection, and everything else as it falls due; returns after the last.

        Args:
            hello: The first message.
            send: Sends one.
            drain: Takes the core's events: it has some of its own where something can't be said any more.

        Raises:
            SeedanceError: ``send`` did.
        """
        self._open = self._broken = False
        await send(hello)
        while self._usable():
            said_bye = self._open and self._take_step()
            payloads = self._core.data_to_send()
            drain()
            for data in payloads:
                if not self._usable():
                    return
                await send(data)
            if said_bye:
                return
            if not self._due:
                await self._wait()

    def _usable(self) -> bool:
        return not self._broken

    @property
    def _due(self) -> bool:
        if not self._open:
            return False
        if self._acks:
            return bool(self._steps) or self._ack_wait_s <= 0
        return bool(self._steps) or self._finishing

    @property
    def _ack_wait_s(self) -> float:
        return self._next_ack_at - trio.current_time()

    def _take_step(self) -> bool:
        """Gives the core the next thing to say; True for BYE."""
        if self._steps:
            self._steps.popleft()()
        elif self._acks:
            if self._ack_wait_s > 0:
                return False
            processed = tuple(islice(self._acks.items(), MAX_ACK_ENTRIES))
            for stream_id, _ in processed:
                del self._acks[stream_id]
            self._core.acknowledge(processed)
            self._next_ack_at = trio.current_time() + self._ack_interval_s
        elif self._finishing:
            if self._bye:
                self._core.bye()
            return True
        return False

    async def _wait(self) -> None:
        with trio.move_on_at(self._next_ack_at if self._open and self._acks else float("inf")):
            await self._work.wait()
        self._work = trio.Event()  # only now: what was set while a message went out counts
