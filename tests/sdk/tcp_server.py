"""A `ScriptedServer` behind a real WebSocket on loopback TCP, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from seedance_sdk.endpoint import Endpoint
from seedance_sdk.errors import SeedanceError
from seedance_sdk.limits import Limits
from seedance_sdk.testing import ScriptedServer
from seedance_sdk.transport import Transport


@contextmanager
def served(server: ScriptedServer) -> Iterator[str]:
    """Serves until the context ends; yields the URL."""
    ready = threading.Event()
    state: dict[str, object] = {}
    stop = trio.Event()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listening = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, None)
            state.update(port=listening.port, token=trio.lowlevel.current_trio_token())
            ready.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    async def handle(request: WebSocketRequest) -> None:
        socket = await request.accept(subprotocol=request.proposed_subprotocols[0])
        endpoint = Endpoint.of(
            "ws://loopback", subprotocol=socket.subprotocol or "", api_key=None, user_agent="test"
        )
        async with server(endpoint, Limits()) as transport, trio.open_nursery() as nursery:
            nursery.start_soon(to_server, socket, transport)
            try:
                while True:
                    await socket.send_message(await transport.receive())
            except SeedanceError as over:
                code = over.close_code or 1006
                await socket.aclose(1011 if code == 1006 else code)
            except ConnectionClosed:
                pass
            nursery.cancel_scope.cancel()

    async def to_server(socket: WebSocketConnection, transport: Transport) -> None:
        try:
            while True:
                await transport.send(await socket.get_message())
        except (ConnectionClosed, SeedanceError):
            await transport.aclose()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"ws://127.0.0.1:{state['port']}/v1/chat"
    finally:
        token = state["token"]
        assert isinstance(token, trio.lowlevel.TrioToken)
        token.run_sync_soon(stop.set)
        thread.join(10)
        assert not thread.is_alive()
