"""A stream that bounds what one peer can make the server read, buffer, parse or wait for.

The WebSocket library underneath parses whatever arrives; this stream stands between it and the socket and
counts. It keeps three rules: so many bytes and no more between two complete messages, so many bytes a second,
and a send either completes in time or is the last thing that ever happens on the connection. Half a frame is
therefore never followed by another, whoever was cancelled.

It must not know what the bytes mean: no WebSocket, no HTTP.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, evolve, frozen

__all__ = ["GuardLimits", "GuardStatistics", "GuardedStream"]


@frozen(kw_only=True)
class GuardLimits:
    """Bounds of one connection; the reasons stand at their twins in `Config`.

    Attributes:
        before_accept_bytes: Bytes read before `GuardedStream.note_accepted`.
        between_messages_bytes: Bytes read between two calls of `GuardedStream.note_message`.
        bytes_per_second: Rate above which reading is slowed down, never refused.
        burst_bytes: Bytes above the rate that pass without delay.
        send_timeout_s: Time in which one send must complete.
        linger_s: Time for which a closed connection is still read, so that the peer sees the last words.
        linger_bytes: Bytes read away in that time at most.
    """

    before_accept_bytes: int
    between_messages_bytes: int
    bytes_per_second: float
    burst_bytes: int
    send_timeout_s: float
    linger_s: float
    linger_bytes: int


@define
class GuardStatistics:
    """What passed one connection.

    Attributes:
        received_bytes: Bytes read from the peer.
        sent_bytes: Bytes whose send completed.
        delayed_s: Time for which reading was slowed down.
        tripped: The rule that ended the connection, or None.
    """

    received_bytes: int = 0
    sent_bytes: int = 0
    delayed_s: float = 0.0
    tripped: str | None = None


class GuardedStream(trio.abc.Stream):
    """Wraps a transport; what breaks a rule looks to the reader like a peer that is gone.

    Resource handling: owns the transport; `aclose` closes it, `abort` does so at once.

    Error handling: a broken rule raises `trio.BrokenResourceError`, as a dead transport would, and the rule's
    name stands in ``statistics().tripped``. One task may receive while another sends.

    Args:
        transport: The stream to guard.
        limits: The bounds.

    Attributes:
        heard_s: When something last came, on trio's clock.
    """

    def __init__(self, transport: trio.abc.Stream, limits: GuardLimits) -> None:
        self._transport = transport
        self._limits = limits
        self._first_send_timeout_s = limits.send_timeout_s
        self._first_user_timeout_ms: int | None = None
        self._replay = b""
        self._held = b""
        self._gate = trio.Event()
        self._gate.set()
        self._accepted = False
        self._since_message = 0
        self._allowance = float(limits.burst_bytes)
        self._allowance_at = trio.current_time()
        self._aborted = False
        self._turn = trio.Lock()
        self._sending = False
        self._gathered: bytearray | None = None
        self._counts = GuardStatistics()
        self.heard_s = self._allowance_at

    def statistics(self) -> GuardStatistics:
        """What passed so far; the object is live."""
        return self._counts

    def note_accepted(self) -> None:
        """The peer has been let in: the budget between messages replaces the one before."""
        self._accepted = True
        self._since_message = 0
        self._gate.set()

    def note_message(self) -> None:
        """A complete message has reached the application: the budget starts anew."""
        self._since_message = 0

    def replay(self, head: bytes, rest: bytes) -> None:
        """Hands out ``head``, then nothing until `note_accepted`, then ``rest``, then what comes.

        The library loses what it is given between a request and its acceptance, so it is given nothing then.
        Neither part is counted: they were when they were read, or are our own.
        """
        self._replay = head
        self._held = rest
        self._gate = trio.Event()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Returns at least one byte, or ``b""`` at the end; waits longer where the peer is too fast.

        If cancelled, nothing was read.
        """
        if not self._replay:
            await self._gate.wait()
            self._replay, self._held = self._held, b""
        if self._replay:
            await trio.lowlevel.checkpoint()
            size = len(self._replay) if max_bytes is None else max_bytes
            replayed, self._replay = self._replay[:size], self._replay[size:]
            return replayed
        await self._sleep_off_debt()
        try:
            data = bytes(await self._transport.receive_some(max_bytes))
        except trio.BusyResourceError as error:  # `aclose` reads the rest away
            raise trio.BrokenResourceError("the connection is being closed") from error
        self.heard_s = trio.current_time()
        self._counts.received_bytes += len(data)
        self._since_message += len(data)
        budget = self._limits.between_messages_bytes if self._accepted else self._limits.before_accept_bytes
        if self._since_message > budget:
            rule = "between_messages_bytes" if self._accepted else "before_accept_bytes"
            await self._trip(rule)
        self._charge(len(data))
        return data

    def _charge(self, size: int) -> None:
        """Takes ``size`` from the allowance, into debt where there isn't as much."""
        now = trio.current_time()
        earned = (now - self._allowance_at) * self._limits.bytes_per_second
        self._allowance = min(self._limits.burst_bytes, self._allowance + earned) - size
        self._allowance_at = now

    async def _sleep_off_debt(self) -> None:
        """Waits until as much has been earned as was read: before a read, so that no cancel loses bytes."""
        due_s = self._allowance_at - self._allowance / self._limits.bytes_per_second
        began_s = trio.current_time()
        if due_s > began_s:
            try:
                await trio.sleep_until(due_s)
            finally:
                self._counts.delayed_s += trio.current_time() - began_s

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything in time; if cancelled or late, the connection is closed and no byte follows."""
        if self._aborted:
            raise trio.BrokenResourceError("the connection was aborted")
        if self._gathered is not None:
            self._gathered += data
            return
        await self._take_turn()
        done = False
        self._sending = True
        try:
            with trio.move_on_after(self._limits.send_timeout_s):
                await self._transport.send_all(data)
                done = True
        except trio.BusyResourceError as error:  # `aclose` says just now that nothing follows
            raise trio.BrokenResourceError("the connection is being closed") from error
        finally:
            self._sending = False
            if not done:
                await self.abort()
            self._turn.release()
        if not done:
            await self._trip("send_timeout_s")
        self._counts.sent_bytes += len(data)

    async def _take_turn(self) -> None:
        """Waits for a send that is under way: `together` sends outside of the library's own lock."""
        try:
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            try:
                await self._turn.acquire()
            except trio.Cancelled:  # its bytes are lost, so what would follow makes no sense
                await self.abort()
                raise
        if self._aborted:  # meanwhile
            self._turn.release()
            raise trio.BrokenResourceError("the connection was aborted")

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """What is sent in the block, by whomever, leaves at its end: in one go, as `send_all` sends it.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: As from `send_all`.
        """
        assert self._gathered is None, "not within itself"  # noqa: S101
        self._gathered = bytearray()
        try:
            yield
        finally:
            gathered, self._gathered = self._gathered, None
            if gathered:
                await self.send_all(gathered)

    def let_stand(self, timeout_s: float | None) -> None:
        """From now on the peer may read nothing for so long; None: for as long as at first.

        For readers that can't acknowledge: it is the full buffers that hold their streams up.
        """
        is_back = timeout_s is None
        send_timeout_s = self._first_send_timeout_s if timeout_s is None else timeout_s
        self._limits = evolve(self._limits, send_timeout_s=send_timeout_s)
        below = getattr(self._transport, "transport_stream", self._transport)  # under TLS
        if isinstance(below, trio.SocketStream) and hasattr(socket, "TCP_USER_TIMEOUT"):
            # The system would cut it before: this counts a window that stays shut as well as silence.
            option = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            if self._first_user_timeout_ms is None:
                self._first_user_timeout_ms = below.getsockopt(*option)
            below.setsockopt(*option, self._first_user_timeout_ms if is_back else round(send_timeout_s * 1e3))

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until the transport may take more."""
        await self._transport.wait_send_all_might_not_block()

    async def _trip(self, rule: str) -> None:
        self._counts.tripped = rule
        await self.abort()
        raise trio.BrokenResourceError(f"the peer went beyond {rule}")

    async def abort(self) -> None:
        """Closes the transport at once, with nothing more sent or waited for; safe to repeat."""
        self._aborted = True
        with trio.CancelScope(shield=True):  # closing forcefully never blocks
            await trio.aclose_forcefully(self._transport)

    async def aclose(self) -> None:
        """Ends the connection so that the peer sees our last words; a cancelled close still closes.

        A socket closed while unread bytes wait answers with a reset, which makes the peer's system throw away
        what we sent last: a close frame, an HTTP status. So the rest is read away first, bounded both ways.
        """
        try:
            if not self._aborted:
                await self._linger()
        finally:
            await self._transport.aclose()

    async def _linger(self) -> None:
        remaining = self._limits.linger_bytes
        try:
            with trio.move_on_after(self._limits.linger_s):
                # Where something is being sent that is the last word, and its end is seen by the close.
                if isinstance(self._transport, trio.abc.HalfCloseableStream) and not self._sending:
                    await self._transport.send_eof()
                while remaining > 0:
                    data = await self._transport.receive_some(4096)
                    if not data:
                        break
                    remaining -= len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            return  # gone already, or another task is reading: nothing left to be polite about
