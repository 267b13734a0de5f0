"""The table of heartbeats, and the clients that it is measured with."""

import json
import threading
from pathlib import Path

import pytest
import trio
from trio_websocket import ConnectionClosed, serve_websocket

import heartbeat
from idle_clients import IdleClients
from seedance_wire.connection import Connection
from seedance_wire.messages import Limits, Welcome
from seedance_wire.state import Role

FIGURES = {
    "cpu_s_per_minute": 1.0,
    "pings_per_minute": 10,
    "closed_idle": 0,
    "closed_under_load": 0,
    "pings_under_load": 3,
    "cpu_under_load": 0.25,
    "tokens_under_load": 500,
}


def record(lazy_closed: int = 0) -> dict[str, object]:
    servers = {name: dict(FIGURES) for name in heartbeat.KINDS}
    servers["lazy"] |= {"cpu_s_per_minute": 1.5, "closed_under_load": lazy_closed}
    servers["ticker"] |= {"cpu_s_per_minute": 5.0}
    return {
        "taken_at": "2026-01-01T00:00:00+00:00",
        "connections": 20,
        "idle_s": 60.0,
        "load_s": 50.0,
        "servers": servers,
    }


def test_table_says_what_the_heartbeat_alone_costs() -> None:
    """What the server does anyway is taken off both."""
    assert heartbeat.table(record()).endswith(
        "for the heartbeat alone: lazy 0.50 s, ticker 4.00 s of CPU a minute"
    )


@pytest.mark.parametrize("closed", [0, 1])
def test_benchmark_fails_where_a_living_client_was_closed(
    closed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is the one thing that a heartbeat must never do."""
    monkeypatch.setattr(heartbeat, "run", lambda *_: record(closed))
    monkeypatch.setattr(heartbeat, "stop_like_ctrl_c_on_sigterm", lambda: None)
    assert heartbeat.main(["--results", str(tmp_path)]) == closed
    (written,) = tmp_path.glob("heartbeat-*.json")
    assert json.loads(written.read_text()) == record(closed)


class PingingServer:
    """Greets, sends two heartbeats, and closes with 4408."""

    def __init__(self) -> None:
        self.url = ""
        self.ready = threading.Event()
        self.done = threading.Event()

    async def _handle(self, request) -> None:
        websocket = await request.accept(subprotocol="seedance.v1")
        connection = Connection(Role.SERVER, "seedance.v1")
        connection.receive_data(await websocket.get_message())
        welcome = Welcome(
            session_id="s" * 200,  # a message with a long head
            epoch=1,
            last_sequence_id=0,
            model="m",
            limits=Limits(max_message_bytes=1, max_streams=1, max_context_tokens=1),
        )
        await websocket.send_message(connection.send(welcome))
        await websocket.ping(b"SD\x01")
        await websocket.ping(b"SD\x02")
        await websocket.aclose(4408)
        with pytest.raises(ConnectionClosed):
            await websocket.get_message()
        self.done.set()

    def run(self) -> None:
        async def serve() -> None:
            async with trio.open_nursery() as nursery:
                server = await nursery.start(serve_websocket, self._handle, "127.0.0.1", 0, None)
                self.url = f"ws://127.0.0.1:{server.port}/v1/chat"
                self.ready.set()
                await trio.to_thread.run_sync(self.done.wait)
                nursery.cancel_scope.cancel()

        trio.run(serve)


@pytest.mark.slow
def test_idle_client_answers_pings_and_counts_how_it_was_closed() -> None:
    """A client that forgot a pong would be closed, and blamed on the server."""
    server = PingingServer()
    thread = threading.Thread(target=server.run)
    thread.start()
    server.ready.wait(5)
    with IdleClients([server.url], 1) as clients:
        assert server.done.wait(5)
        thread.join(5)
        (counts,) = clients.counts()
    assert counts["pings"] == 2
    assert counts["closed"] == {"4408": 1}
