"""What a session still has to say, in the order in which it must be said; outlives its connections.

Requests and cancels first, then acknowledgements, and BYE last. One message acknowledges as many frames as
can wait for it, since it costs both ends more than a frame does. A request is made only when its turn comes,
so that one which was given up before leaves no trace. While there is no connection everything waits: a step
for each request at most, and one number for each stream. Where the server has said how fast it reads, only
acknowledgements are faster. Must not know who is at the other end, nor what a step does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from itertools import islice

import trio

from seedance_wire.client_session import ClientSession
from seedance_wire.envelope import MAX_ACK_ENTRIES
from seedance_wire.messages import Limits as ServerLimits
from seedance_wire.token_bucket import TokenBucket

__all__ = ["Outbox"]

ACK_FRAMES = 4
"""So many frames of a stream are acknowledged without delay: a quarter of the least window, so that what
waits here never keeps the server from sending."""

_RATE_SHARE, _BURST_SHARE = 0.9, 0.5
"""What we use of what the server allows: clocks differ, and a network that stalled for two seconds brings
in one moment what was sent evenly. Our own server takes 200 at once and 50 a second."""


class _Said(Enum):
    """What one turn gave to the core."""

    NOTHING = auto()
    STEP = auto()
    ACKS = auto()
    BYE = auto()


class Outbox:
    """The sending half of one session.

    Args:
        core: What makes messages.
        ack_interval_s: Least time between two ACK messages, in seconds.
        ack_delay_s: Most time that a frame waits for its own, in seconds, where few come.
    """

    def __init__(self, core: ClientSession, ack_interval_s: float, ack_delay_s: float) -> None:
        self._core = core
        self._ack_interval_s = ack_interval_s
        self._ack_delay_s = ack_delay_s
        self._steps: deque[Callable[[], object]] = deque()
        self._acks: dict[int, int] = {}
        self._first_taken: dict[int, int] = {}  # of those that are not acknowledged
        self._next_ack_at = self._acks_due_at = 0.0
        self._pace: TokenBucket | None = None  # of the present connection
        self._open = False
        self._broken = False
        self._finishing = False
        self._bye = True
        self._work = trio.Event()
        self._sleep = trio.CancelScope()  # until there is work, or some falls due

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
        if not self._acks:
            self._acks_due_at = 0.0 if self._finishing else trio.current_time() + self._ack_delay_s
            if self._open:
                self._sleep.deadline = min(self._sleep.deadline, self._acks_due_at)
        self._acks[stream_id] = frame_id
        if frame_id - self._first_taken.setdefault(stream_id, frame_id) >= ACK_FRAMES - 1:
            self._acks_due_at = 0.0
            self._work.set()

    def finish(self, *, bye: bool) -> None:
        """Has the connection left after everything else was said, with BYE or, for a while, without."""
        self._finishing = True
        self._bye = bye
        self._acks_due_at = 0.0
        self._work.set()

    def keep_pace(self, limits: ServerLimits) -> None:
        """Notes how fast the server of the present connection reads; called before `open`."""
        self._pace = None
        if limits.messages_per_second and limits.message_burst:
            burst = max(1.0, _BURST_SHARE * limits.message_burst)
            self._pace = TokenBucket(_RATE_SHARE * limits.messages_per_second, burst, trio.current_time())

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
            said = self._take_step() if self._open else _Said.NOTHING
            payloads = self._core.data_to_send()
            drain()
            paced = len(payloads) - (said is _Said.ACKS)  # the core puts acknowledgements last
            for index, data in enumerate(payloads):
                if index < paced:
                    await self._keep_to_the_pace()
                if not self._usable():
                    return
                await send(data)
            if said is _Said.BYE:
                return
            if not self._due:
                await self._wait()

    def _usable(self) -> bool:
        return not self._broken

    @property
    def _due(self) -> bool:
        if not self._open:
            return False
        if self._steps and self._step_wait_s <= 0:
            return True
        return self._ack_wait_s <= 0 if self._acks else self._finishing and not self._steps

    @property
    def _step_wait_s(self) -> float:
        return 0.0 if self._pace is None else self._pace.wait_s(trio.current_time())

    async def _keep_to_the_pace(self) -> None:
        """Waits where the core has more to say than a step: on a new connection, everything unanswered."""
        if self._pace is None:
            return
        if (wait_s := self._step_wait_s) > 0:
            await trio.sleep(wait_s)
        self._pace.take(trio.current_time())

    @property
    def _ack_wait_s(self) -> float:
        return max(self._next_ack_at, self._acks_due_at) - trio.current_time()

    def _take_step(self) -> _Said:
        """Gives the core the next thing to say; acknowledgements do not wait for the pace of the rest."""
        if self._steps and self._step_wait_s <= 0:
            self._steps.popleft()()
            return _Said.STEP
        if self._acks:
            if self._ack_wait_s > 0:
                return _Said.NOTHING
            processed = tuple(islice(self._acks.items(), MAX_ACK_ENTRIES))
            for stream_id, _ in processed:
                del self._acks[stream_id], self._first_taken[stream_id]
            self._core.acknowledge(processed)
            self._next_ack_at = trio.current_time() + self._ack_interval_s
            return _Said.ACKS
        if self._finishing and not self._steps:
            if self._bye:
                self._core.bye()
            return _Said.BYE
        return _Said.NOTHING

    async def _wait(self) -> None:
        until = float("inf")
        if self._open and self._acks:
            until = trio.current_time() + self._ack_wait_s
        if self._open and self._steps:
            until = min(until, trio.current_time() + self._step_wait_s)
        with trio.CancelScope(deadline=until) as self._sleep:
            await self._work.wait()
        self._work = trio.Event()  # only now: what was set while a message went out counts
