"""The WebSocket messages of one connection, as they leave and as they come: limits, compression, counts.

A limit is on what a message says, however long it is on the wire; what is sent is checked before anything
counts on it. It must not know what is in a message.
"""

from __future__ import annotations

from .compression import Compressor, Decompressor, longest_packed
from .errors import CloseCode, MessageTooLargeError, RemoteProtocolError

__all__ = ["Traffic"]


class Traffic:
    """Both directions of a connection, from one end.

    Args:
        max_incoming_bytes: Longest message to read.
        max_outgoing_bytes: Longest message that the other end reads.
        trial_messages: See `Compressor`.

    Attributes:
        max_outgoing_bytes: As above, until the other end says otherwise.
        messages_sent, messages_received: How many there were.
        bytes_sent, bytes_received: On the wire, without WebSocket headers.
        plain_bytes_sent, plain_bytes_received: The same before they were compressed.
    """

    def __init__(self, max_incoming_bytes: int, max_outgoing_bytes: int, trial_messages: int) -> None:
        self.max_outgoing_bytes = max_outgoing_bytes
        self.messages_sent = self.messages_received = 0
        self.bytes_sent = self.bytes_received = 0
        self.plain_bytes_sent = self.plain_bytes_received = 0
        self._max_incoming_bytes = max_incoming_bytes
        self._trial_messages = trial_messages
        self._compressor: Compressor | None = None
        self._decompressor: Decompressor | None = None

    @property
    def is_compressing(self) -> bool:
        """Whether messages may leave compressed from here on."""
        return self._compressor is not None and self._compressor.is_on is True

    def allow_compression(self) -> None:
        """Both ends can read what is compressed, from here on."""
        self._compressor = Compressor(self._trial_messages)
        self._decompressor = Decompressor(self._max_incoming_bytes)

    def check(self, payload: bytes | str) -> None:
        """Checks a message before it is sent.

        Raises:
            MessageTooLargeError: The other end would not read it.
        """
        size = _size(payload)
        if size > self.max_outgoing_bytes:
            raise MessageTooLargeError(size, self.max_outgoing_bytes)

    def send(self, payload: bytes | str, *, last: bool) -> bytes | str:
        """Returns what is to be sent for a message that was checked; it counts as sent.

        Args:
            payload: The message.
            last: Nothing is expected to follow for a while.
        """
        self.messages_sent += 1
        size = _size(payload)
        self.plain_bytes_sent += size
        if self._compressor is not None and isinstance(payload, bytes):
            payload = self._compressor.pack(payload, last=last)
            size = len(payload)
        self.bytes_sent += size
        return payload

    def receive(self, data: bytes | str) -> bytes | str:
        """Returns the message that came as ``data``.

        Raises:
            RemoteProtocolError: It is too long, or no message can come so.
        """
        size = _size(data)
        self.messages_received += 1
        self.bytes_received += size
        is_readable = size <= longest_packed(self._max_incoming_bytes)
        if self._decompressor is not None and isinstance(data, bytes) and is_readable:
            data = self._decompressor.unpack(data)
            size = len(data)
        if size > self._max_incoming_bytes:
            raise RemoteProtocolError(
                f"a message of {size} bytes, where {self._max_incoming_bytes} are allowed",
                CloseCode.MESSAGE_TOO_BIG,
            )
        self.plain_bytes_received += size
        return data


def _size(payload: bytes | str) -> int:
    return len(payload if isinstance(payload, bytes) else payload.encode("utf-8", "surrogatepass"))
