"""Streams completions from an OpenAI-compatible server: HTTP/1.1 and server-sent events over a trio socket.

As light as a client of such a server can be, so that what it costs is not held against the server: a socket
for each request, h11 for the framing, one `json.loads` for each event. The clock starts once connected.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import h11
import trio
from attrs import define, field

from engine.workload import Request
from figures import Answer

__all__ = ["EventLines", "PeerError", "is_healthy", "stream_completion"]

READ_BYTES = 65_536
# A burst of 128 streams on two cores takes half a minute; a server far beyond that hangs.
ANSWER_TIMEOUT_S = 120.0


class PeerError(Exception):
    """A peer refused a request, or answered with something other than a stream of events."""


@define
class EventLines:
    """Takes the body of a response in pieces, cut anywhere, and yields the payloads of its events."""

    _rest: bytes = field(default=b"", init=False)

    def take(self, data: bytes) -> Iterator[str]:
        """Yield the text behind each whole ``data:`` line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()


async def stream_completion(
    port: int, body: Mapping[str, Any], request: Request, clock: Callable[[], float] = time.monotonic
) -> Answer:
    """Ask ``/v1/completions`` of a server on this machine and read the answer to its end.

    Args:
        port: Where it listens.
        body: What this server wants beside prompt, length and streaming.
        request: What is asked.
        clock: Seconds; stamps each piece when it was read.

    Raises:
        PeerError: The server didn't answer as such a server does; an answer that fails half-way is returned
            with its ``error`` instead.
    """
    payload = {"prompt": request.prompt, "max_tokens": request.max_tokens, "stream": True, **body}
    data = json.dumps(payload).encode()
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            started_s = clock()
            http = h11.Connection(h11.CLIENT)
            await stream.send_all(_request_bytes(http, "POST", "/v1/completions", data))
            return await _read_answer(http, stream, Answer(started_s), clock)
    raise PeerError(f"no whole answer within {ANSWER_TIMEOUT_S:.0f} s")


def _request_bytes(http: h11.Connection, method: str, target: str, data: bytes = b"") -> bytes:
    head = h11.Request(
        method=method,
        target=target,
        headers=[
            ("Host", "127.0.0.1"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
            ("Connection", "close"),
        ],
    )
    parts = [http.send(head), http.send(h11.Data(data=data)) if data else b"", http.send(h11.EndOfMessage())]
    return b"".join(part for part in parts if part)


async def _events(http: h11.Connection, stream: trio.SocketStream) -> Any:
    """Return the next HTTP event, reading as needed."""
    while (event := http.next_event()) is h11.NEED_DATA:
        try:
            http.receive_data(await stream.receive_some(READ_BYTES))
        except trio.BrokenResourceError as error:
            raise PeerError(f"connection lost: {error}") from None
    return event


async def _read_answer(
    http: h11.Connection, stream: trio.SocketStream, answer: Answer, clock: Callable[[], float]
) -> Answer:
    lines, status, refusal = EventLines(), 0, b""
    while not isinstance(event := await _events(http, stream), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            if status != 200:
                refusal += event.data
                continue
            now_s = clock()
            for payload in lines.take(bytes(event.data)):
                _note(answer, payload, now_s)
        elif not isinstance(event, h11.InformationalResponse):
            raise PeerError(f"unexpected {type(event).__name__}")
    if status != 200:
        raise PeerError(f"status {status}: {refusal[:500].decode(errors='replace')}")
    if math.isnan(answer.ended_s):
        raise PeerError("an answer without a token")
    return answer


def _note(answer: Answer, payload: str, now_s: float) -> None:
    if payload == "[DONE]":
        return
    event = json.loads(payload)
    if "error" in event:
        answer.error = json.dumps(event["error"])
    text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
    if text:
        answer.arrivals_s.append(now_s)
        answer.text += text
        answer.ended_s = now_s
    if event.get("usage"):
        answer.tokens = event["usage"]["completion_tokens"]


async def is_healthy(port: int, path: str) -> bool:
    """Tell whether a GET of this path is answered with 200 within a few seconds."""
    with trio.move_on_after(5):
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                http = h11.Connection(h11.CLIENT)
                await stream.send_all(_request_bytes(http, "GET", path))
                event = await _events(http, stream)
                return isinstance(event, h11.Response) and event.status_code == 200
        except (OSError, PeerError, h11.RemoteProtocolError):
            return False
    return False
