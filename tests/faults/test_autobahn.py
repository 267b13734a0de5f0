"""The Autobahn cases against an echo under the guard: bounding a peer must not cost conformance.

kosoku drives them; compression isn't negotiated here, so its cases don't count. Messages above the limit are
refused on purpose, so the limit is raised for the cases of 16 MB.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import pytest
import trio
from trio_websocket import ConnectionClosed, wrap_server_stream

from seedance_server.guard import GuardedStream, GuardLimits

kosoku = pytest.importorskip("kosoku")

pytestmark = pytest.mark.slow

MAX_MESSAGE_BYTES = 1 << 24
GOOD = {"OK", "NON-STRICT", "INFORMATIONAL"}
# Cases of compression, and those that only measure speed with far more data than a chat ever sends.
EXCLUDED = ["9.*", "12.*", "13.*"]


async def echo(transport: trio.SocketStream) -> None:
    guard = GuardedStream(
        transport,
        GuardLimits(
            before_accept_bytes=20_000,
            between_messages_bytes=2 * MAX_MESSAGE_BYTES + 65_536,
            bytes_per_second=1 << 30,
            burst_bytes=1 << 30,
            send_timeout_s=10,
            linger_s=1,
            linger_bytes=1 << 20,
        ),
    )
    with contextlib.suppress(BaseExceptionGroup):
        async with trio.open_nursery() as library:
            request = await wrap_server_stream(
                library,
                guard,
                message_queue_size=8,
                max_message_size=MAX_MESSAGE_BYTES,
                receive_buffer_size=4096,
            )
            websocket = await request.accept()
            guard.note_accepted()
            with contextlib.suppress(ConnectionClosed):
                while True:
                    message = await websocket.get_message()
                    guard.note_message()
                    await websocket.send_message(message)
            library.cancel_scope.cancel()
    await guard.aclose()


async def test_autobahn_cases_pass_under_the_guard() -> None:
    """No case fails that the library alone would pass."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        results = await trio.to_thread.run_sync(run_cases, f"ws://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()
    assert len(results) > 200
    assert {case: verdict for case, verdict in results.items() if verdict not in GOOD} == {}


def run_cases(url: str) -> dict[str, str]:
    """Each case's verdict."""
    try:
        results = asyncio.run(kosoku.run_fuzzingclient(url, exclude_cases=EXCLUDED, concurrency=4))
    except kosoku.FailureError as error:
        results = error.results
    return {result.case_id: result.behavior.value for result in results}
