"""A byte stream that bounds what a server can make this process read, and never leaves half a frame.

The WebSocket library underneath parses whatever arrives; this stream stands between it and the socket and
counts. It also keeps the first bytes of the answer to the upgrade, so that a refusal's HTTP status is known
however the connection ends. A send that is cancelled or late aborts the stream: nothing can follow the half
that went out.

Speed is not limited: a client does its own work only, and the budget between messages ends floods of pings,
empty fragments and bytes that never become a message.
"""

from __future__ import annotations

import re

import trio

__all__ = ["GuardedStream"]

# The answer to the upgrade is a few hundred bytes; the figure is the server's own for the request.
BEFORE_ACCEPT_BYTES = 20_000

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: |\r\n)")
_STATUS_LINE_BEGINS = re.compile(rb"HTTP/1\.[01] |H(T(T(P(\/(1(\.1?)?)?)?)?)?)?\Z")
_RETRY_AFTER = re.compile(rb"\r\nretry-after:[ \t]*([0-9]{1,6})[ \t]*\r\n", re.IGNORECASE)
_ERROR_CODE = re.compile(rb"\r\nseedance-error:[ \t]*([a-z_]{1,40})[ \t]*\r\n", re.IGNORECASE)
_DETAIL_BYTES = 200


class GuardedStream(trio.abc.Stream):
    """Wraps a transport stream.

    Resource handling: owns the transport; `aclose` closes it.

    Error handling: a broken bound raises `trio.BrokenResourceError`, as a dead transport would, and its name
    stands in ``tripped``.

    Args:
        transport: The stream to guard.
        max_message_bytes: Largest message expected; twice that and 64 KiB may be read between two messages.
        send_timeout_s: Time in which one send must complete.

    Attributes:
        ended: Set when the transport is closed, broken or over a bound, or when a refusal has been read.
        tripped: The bound that was broken, in words, or None.
        stalled: Whether that was a send that nobody read; any other bound is one on what the server sends.
    """

    def __init__(self, transport: trio.abc.Stream, *, max_message_bytes: int, send_timeout_s: float) -> None:
        self.ended = trio.Event()
        self.tripped: str | None = None
        self.stalled = False
        self._transport = transport
        self._between_messages_bytes = 2 * max_message_bytes + 65_536
        self._send_timeout_s = send_timeout_s
        self._since_message = 0
        self._accepted = False
        self._aborted = False
        self._closed = False
        self._head = bytearray()

    def note_accepted(self) -> None:
        """The upgrade succeeded: what follows are messages."""
        self._accepted = True
        self._since_message = 0
        self._head.clear()

    def note_message(self) -> None:
        """A whole message was received: the budget starts anew."""
        self._since_message = 0

    @property
    def answered(self) -> bool:
        """Whether anything came before the upgrade succeeded."""
        return bool(self._head)

    @property
    def cut_short(self) -> bool:
        """Whether the answer to the upgrade began as HTTP and ended before its head did."""
        cut = self.ended.is_set() and b"\r\n\r\n" not in self._head
        return cut and bool(self._head) and _STATUS_LINE_BEGINS.match(self._head) is not None

    @property
    def status(self) -> int | None:
        """The HTTP status of the answer to the upgrade, or None while or if there is none."""
        found = _STATUS_LINE.match(self._head)
        return int(found[1]) if found else None

    @property
    def retry_after_ms(self) -> int | None:
        """What ``Retry-After`` asked for in seconds, as milliseconds; a date there is ignored."""
        found = _RETRY_AFTER.search(self._head)
        return 1000 * int(found[1]) if found else None

    @property
    def error_code(self) -> str | None:
        """What ``Seedance-Error`` says, as the server's messages would; None from what is in between."""
        head, _, _ = self._head.partition(b"\r\n\r\n")
        found = _ERROR_CODE.search(head + b"\r\n")
        return found[1].decode() if found else None

    @property
    def detail(self) -> str:
        """The first words of a refusal's body, printable and short; "" if there are none."""
        _, _, body = self._head.partition(b"\r\n\r\n")
        words = body[:_DETAIL_BYTES].decode("utf-8", "replace")
        return "".join(character if character.isprintable() else " " for character in words).strip()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Returns at least one byte, or ``b""`` at the end."""
        self._raise_if_aborted()
        try:
            data = bytes(await self._transport.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended.set()
            raise
        self._since_message += len(data)
        if self._accepted:
            if self._since_message > self._between_messages_bytes:
                await self._trip(f"{self._since_message} bytes without a whole message")
            return data
        self._head += data
        if self._since_message > BEFORE_ACCEPT_BYTES:
            await self._trip(f"{self._since_message} bytes of answer to the upgrade")
        if not data or (b"\r\n\r\n" in self._head and self.status not in {None, 101}):
            self.ended.set()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything in time; if cancelled or late, the transport is aborted and nothing can follow."""
        self._raise_if_aborted()
        sent = False
        try:
            with trio.move_on_after(self._send_timeout_s):
                await self._transport.send_all(data)
                sent = True
        finally:
            if not sent:
                await self.abort()
        if not sent:
            self.stalled = True
            await self._trip(f"nothing was read for {self._send_timeout_s:g} s")

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until the transport may take more."""
        await self._transport.wait_send_all_might_not_block()

    def _raise_if_aborted(self) -> None:
        if self._aborted and not self._closed:
            raise trio.BrokenResourceError("the connection was aborted")

    async def _trip(self, bound: str) -> None:
        self.tripped = bound
        await self.abort()
        raise trio.BrokenResourceError(bound)

    async def abort(self) -> None:
        """Closes the transport at once, with nothing more sent or waited for; safe to repeat."""
        self._aborted = True
        self.ended.set()
        with trio.CancelScope(shield=True):  # closing forcefully never blocks
            await trio.aclose_forcefully(self._transport)

    async def aclose(self) -> None:
        """Closes the transport; a cancelled close still closes."""
        self._closed = True
        self.ended.set()
        await self._transport.aclose()
