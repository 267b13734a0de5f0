"""The head of one HTTP request, read in bounded memory and held as plain text.

h11 parses; this adds what h11 leaves open: names and values are ASCII or the request is refused, so nothing
further in ever sees bytes that it can't decode. Whatever came after the head is kept, not interpreted.

It must not know WebSockets, paths or policies.
"""

from __future__ import annotations

import h11
import trio
from attrs import frozen

from seedance_server.errors import BadRequestHead

__all__ = ["RequestHead", "head_of", "read_head"]

_READ_BYTES = 4096


@frozen(kw_only=True)
class RequestHead:
    """A request's head.

    Attributes:
        method: In capitals.
        target: As sent: path and query.
        http_version: ``1.1`` or ``1.0``.
        headers: Names in lower case and values, in order.
        rest: Bytes that were read beyond the head.
    """

    method: str
    target: str
    http_version: str
    headers: tuple[tuple[str, str], ...]
    rest: bytes = b""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def values(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key == name]

    def get(self, name: str) -> str | None:
        """The value of a header that must be there once; None if it isn't there.

        Raises:
            BadRequestHead: It is there more than once.
        """
        values = self.values(name)
        if len(values) > 1:
            raise BadRequestHead(400, f"more than one {name} header")
        return values[0].strip() if values else None

    def encode(self) -> bytes:
        """The head as it could have been sent, without what came behind it."""
        lines = [f"{self.method} {self.target} HTTP/{self.http_version}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def tokens(self, name: str) -> list[str]:
        """The comma-separated elements of a header, over all its lines."""
        parts = ",".join(self.values(name)).split(",")
        return [part.strip() for part in parts if part.strip()]


async def read_head(stream: trio.abc.ReceiveStream, *, max_bytes: int) -> RequestHead | None:
    """Reads a request's head; None if the peer left before it was complete.

    The caller bounds the time. If cancelled, what was read is lost.

    Raises:
        BadRequestHead: It isn't HTTP/1, is too large, or holds bytes beyond ASCII.
        trio.BrokenResourceError: The transport failed.
    """
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=max_bytes)
    room = max_bytes + 1  # the byte that h11 finds too many
    try:
        while (event := parser.next_event()) is h11.NEED_DATA:
            data = await stream.receive_some(min(_READ_BYTES, room))
            if not data:
                return None
            room -= len(data)
            parser.receive_data(bytes(data))
    except h11.RemoteProtocolError as error:
        raise BadRequestHead(error.error_status_hint, "not a good HTTP/1.1 request") from error
    if not isinstance(event, h11.Request):
        return None
    return head_of(event, parser.trailing_data[0])


def head_of(event: h11.Request, rest: bytes = b"") -> RequestHead:
    """The head that h11 has parsed.

    Args:
        event: As parsed.
        rest: Bytes that were read beyond it.

    Raises:
        BadRequestHead: It isn't HTTP/1, or holds bytes beyond ASCII.
    """
    if event.http_version not in (b"1.0", b"1.1"):
        raise BadRequestHead(505, "HTTP/1.1 is spoken here")
    try:
        return RequestHead(
            method=event.method.decode("ascii"),
            target=event.target.decode("ascii"),
            http_version=event.http_version.decode("ascii"),
            headers=tuple((name.decode("ascii"), value.decode("ascii")) for name, value in event.headers),
            rest=rest,
        )
    except UnicodeDecodeError:
        raise BadRequestHead(400, "headers must be ASCII") from None
