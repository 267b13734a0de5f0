"""Streams made-up completions as an OpenAI-compatible server does: a token an event, a step for all.

The other half of `client.py`: it stands where a peer's server would, so that what a client of such a server
costs can be measured without one. Each event has the fields of vLLM's, and its own chunk of HTTP/1.1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import h11
import trio

__all__ = ["main", "serve"]

READ_BYTES = 65_536


def _chunk(payload: str) -> bytes:
    data = f"data: {payload}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(number: int) -> bytes:
    choice = {"index": 0, "text": f"{number} ", "logprobs": None, "finish_reason": None, "stop_reason": None}
    event = {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "numbers",
        "choices": [choice],
        "usage": None,
    }
    return _chunk(json.dumps(event, separators=(",", ":")))


class _Steps:
    """Wakes all streams at once, again and again."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._next = trio.Event()

    async def run(self) -> None:
        while True:
            await trio.sleep(self._step_s)
            self._next.set()
            self._next = trio.Event()

    async def one(self) -> None:
        await self._next.wait()


async def _answer(stream: trio.SocketStream, steps: _Steps) -> None:
    http = h11.Connection(h11.SERVER)
    body = b""
    async with stream:
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(READ_BYTES))
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
        tokens = json.loads(body)["max_tokens"]
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        await stream.send_all(head.encode())
        for number in range(tokens):
            await steps.one()
            await stream.send_all(_event(number))
        usage = {"choices": [], "usage": {"completion_tokens": tokens}}
        await stream.send_all(_chunk(json.dumps(usage)) + _chunk("[DONE]") + b"0\r\n\r\n")


async def serve(step_s: float, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
    """Serve steps of so many seconds until cancelled; the port is told, and printed."""
    steps = _Steps(step_s)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    print(port, flush=True)
    task_status.started(port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps.run)
        nursery.start_soon(trio.serve_listeners, lambda stream: _answer(stream, steps), listeners)


def main(arguments: Sequence[str]) -> None:
    """Serve steps of so many milliseconds until a signal; the port is the first line on stdout."""
    trio.run(serve, float(arguments[0]) / 1e3)


if __name__ == "__main__":
    main(sys.argv[1:])
