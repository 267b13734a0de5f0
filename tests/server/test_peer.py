"""Tests of `seedance_server.peer`: one WebSocket, over the whole server in memory."""

from itertools import pairwise

import pytest
import trio
from trio_websocket import ConnectionClosed

from seedance_server.config import Config
from seedance_server.tenants import Rate, Tenant
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.codec import make_codec
from seedance_wire.errors import CloseCode
from seedance_wire.messages import (
    Ack,
    Bye,
    Cancel,
    Delta,
    Durability,
    Flush,
    GoAway,
    OnDisconnect,
    Refused,
    Submit,
)
from tests.server.attacks import (
    CLOSE,
    PING,
    PONG,
    frame,
    message_bytes,
    raw_websocket,
    read_close_code,
    read_frame,
    submit_bytes,
)
from tests.server.wire_client import KEY, wire_client


@pytest.mark.parametrize("subprotocol", ["seedance.v1", "seedance.v1.json", "seedance.v1.raw"])
async def test_peer_speaks_every_encoding(autojump_clock, subprotocol) -> None:
    """The same conversation in protobuf, JSON and raw text; WELCOME tells the limits."""
    async with (
        serve_in_memory(ScriptedEngine(["Grü", "ße", " 🚀"])) as server,
        wire_client(server.connect(), subprotocol, hello=False) as client,
    ):
        welcome = await client.hello()
        assert welcome.model == "scripted"
        assert welcome.limits.max_streams == 64
        assert welcome.limits.max_message_bytes == 262_144
        await client.submit()
        await client.accepted()
        assert (await client.until_end())[0] == "Grüße 🚀"


async def test_peer_sends_what_is_ready_as_one_message(autojump_clock) -> None:
    """Twenty streams that advance in one step leave in one WebSocket message."""
    engine = ScriptedEngine(["x"] * 10)
    async with serve_in_memory(engine, step_s=0.1) as server, wire_client(server.connect()) as client:
        for _ in range(20):
            await client.submit()
        ends = frames = 0
        while ends < 20:
            event = await client.receive()
            frames += isinstance(event, Delta | Flush)
            ends += isinstance(event, Flush)
        assert frames == 20 * 11
        assert client.messages - len(client.checkpoints) < 20 + 1 + 2 * 13


@pytest.mark.parametrize(
    ("offered", "compression", "agreed"),
    [
        (None, "auto", ("pieces", "zstd")),
        (None, "off", ("pieces",)),
        (("zstd", "later"), "auto", ("zstd",)),
        ((), "auto", ()),
    ],
)
async def test_peer_agrees_on_what_both_can_do(
    autojump_clock, offered: tuple[str, ...] | None, compression: str, agreed: tuple[str, ...]
) -> None:
    """And every client gets the same answer, whatever it can read."""
    engine = ScriptedEngine(["שלום", " עולם"] * 40)
    async with (
        serve_in_memory(engine, config=Config(model_path="scripted", compression=compression)) as server,
        wire_client(server.connect(), capabilities=offered) as client,
    ):
        assert client.welcome.capabilities == agreed
        await client.submit()
        await client.accepted()
        assert (await client.until_end())[0] == "שלום עולם" * 40


async def test_peer_waits_for_hello_only_so_long(autojump_clock) -> None:
    """A client that says nothing is closed with 4408, HELLO or not being its business."""
    async with serve_in_memory() as server, wire_client(server.connect(), hello=False) as client:
        began_s = trio.current_time()
        assert await client.close_code() == CloseCode.TIMED_OUT
        assert trio.current_time() - began_s == pytest.approx(5)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\xff\xff\xff", CloseCode.BAD_MESSAGE),
        (b"", CloseCode.BAD_MESSAGE),
        ("text", CloseCode.UNSUPPORTED_DATA),
        (make_codec("seedance.v1").encode([Bye()]), CloseCode.BAD_MESSAGE),
    ],
)
async def test_peer_closes_a_violation_with_its_code(autojump_clock, payload, code) -> None:
    """Before HELLO nothing else is legal; what is no message has a code of its own."""
    async with serve_in_memory() as server, wire_client(server.connect(), hello=False) as client:
        await client.websocket.send_message(payload)
        assert await client.close_code() == code


@pytest.mark.parametrize("is_read", [True, False])
async def test_peer_ends_normally_after_bye(autojump_clock, is_read) -> None:
    """BYE, then close 1000; what was read goes on for its grace, what the client may not know of waits."""
    engine = ScriptedEngine(["x"] * 100_000)
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        await client.submit()
        await client.accepted()
        if is_read:
            first = (await client.frames(1))[0]
            await client.send(Ack(processed=((first.stream_id, first.id),)))
        await client.send(Bye())
        assert await client.close_code() == 1000
        await trio.sleep(0.1)
        assert bool(engine.active) is is_read
        await trio.sleep(28.8)
        assert bool(engine.active) is is_read
        await trio.sleep(2)
        assert engine.active == ()
        assert server.registry.statistics().sessions == 0


async def test_peer_that_leaves_frees_its_sequences_within_a_step(autojump_clock) -> None:
    """Close, cut, in prefill or while decoding, where the client wants no rest: nothing holds anything."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine) as server:
        for how in ("close", "cut"):
            for wait_s in (0.0, 0.005, 0.1):
                async with wire_client(server.connect()) as client:
                    for durability in (Durability.NONE, Durability.COMMITTED, None):
                        await client.submit(durability=durability, on_disconnect=OnDisconnect.CANCEL)
                    await trio.sleep(wait_s)
                    if how == "close":
                        await client.websocket.aclose()
                await trio.sleep(0.05)
                assert engine.active == ()
                assert server.admission.open_requests == 0
                assert server.engine_loop.statistics().generations == 0
                assert server.registry.statistics().sessions == 0
        assert server.door.statistics().websockets == 0
        assert server.door.statistics().contained == 0


async def test_peer_that_talks_too_fast_is_closed(autojump_clock) -> None:
    """200 at once, then 50 a second; beyond it 4429. Acks have an allowance of their own."""
    config = Config(model_path="m", message_burst=20)
    engine = ScriptedEngine(["x"] * 20_000)
    async with serve_in_memory(engine, config=config) as server, wire_client(server.connect()) as client:
        await client.submit()
        stream = await client.accepted()
        client.acks = False
        await client.receive()
        for _ in range(19):
            await client.cancel(stream)
        for _ in range(20):
            await client.send(Ack(processed=((stream, 1),)))
        await client.cancel(stream)
        assert await client.close_code() == CloseCode.QUOTA_EXCEEDED


async def test_peer_within_its_rate_is_never_closed(autojump_clock) -> None:
    """Fifty acks and fifty messages a second for a minute."""
    engine = ScriptedEngine(["x"])
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        await client.submit()
        stream = await client.accepted()
        await client.until_end()
        for _ in range(50 * 60):
            await client.cancel(stream)
            await client.send(Ack(processed=((stream, 1),)))
            await trio.sleep(0.02)
        await client.submit()
        assert await client.accepted() == stream + 1


async def test_peer_handles_control_while_data_is_held_back(autojump_clock) -> None:
    """Window full for seconds: pings are answered at once, acks, cancels and closes work."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine) as server:
        stream = await raw_websocket(server.connect())
        await stream.send_all(submit_bytes(1))
        await trio.sleep(5)
        assert engine.paused
        await stream.send_all(frame(PING, b"alive?"))
        with trio.fail_after(0.1):
            while (await read_frame(stream)) != (PONG, b"alive?"):
                pass
        await stream.send_all(message_bytes(Cancel(sequence_id=2, stream_id=1)))
        await trio.sleep(0.1)
        assert not engine.active
        await stream.send_all(frame(CLOSE, b"\x03\xe8"))
        with trio.fail_after(0.1):
            assert await read_close_code(stream) == 1000
            assert await stream.receive_some() == b""


async def test_peer_that_does_not_read_is_cut_and_costs_bounded_memory(autojump_clock) -> None:
    """The socket takes nothing: its streams pause, others run on, and it is gone after ten seconds."""
    engine = ScriptedEngine(["y" * 1000] * 500)
    async with serve_in_memory(engine) as server:
        stalled = await raw_websocket(server.connect_lockstep())
        async with wire_client(server.connect()) as good:
            for number in range(1, 4):
                await stalled.send_all(submit_bytes(number))
            began_s = trio.current_time()
            await good.submit()
            await good.accepted()
            text, _ = await good.until_end()
            assert len(text) == 500_000
            assert trio.current_time() - began_s == pytest.approx(5, rel=0.05)
            assert len(engine.active) == 3
            await trio.sleep(7)
            assert server.door.statistics().websockets == 1
            assert server.registry.statistics().unread == 3
            await trio.sleep(32)
            assert server.registry.statistics().sessions == 1
            assert engine.active == ()


async def test_peer_told_to_go_away_ends_with_its_last_stream(autojump_clock) -> None:
    """GOAWAY, the stream to its end, then close 1001; one without a stream closes at once."""
    codec = make_codec("seedance.v1")
    async with (
        serve_in_memory(
            ScriptedEngine(["x"] * 30), config=Config(model_path="m", reconnect_to="wss://other/v1/chat")
        ) as server,
        wire_client(server.connect(), capabilities=()) as busy,
        wire_client(server.connect()) as idle,
        trio.open_nursery() as nursery,
    ):
        await busy.submit()
        await busy.accepted()
        nursery.start_soon(server.door.drain, 30)
        assert await idle.close_code() == 1001
        event = await busy.receive()
        while not isinstance(event, GoAway):
            event = await busy.receive()
        assert (event.deadline_ms, event.reconnect_to) == (30_000, "wss://other/v1/chat")
        # A request that crossed with GOAWAY; one sent after it would be the client's own violation.
        late = Submit(sequence_id=2, idempotency_key=KEY, prompt="late")
        await busy.websocket.send_message(codec.encode([late]))
        decoded = []
        with pytest.raises(ConnectionClosed) as closed:
            await read_all(busy.websocket, codec, decoded)
        assert closed.value.reason.code == 1001
        (refused,) = [message for message in decoded if isinstance(message, Refused)]
        assert (refused.sequence_id, refused.code.value, refused.retryable) == (2, "draining", True)
        assert decoded[-1].final.finish_reason.value == "stop"


async def read_all(websocket, codec, decoded) -> None:
    """Decodes what comes until the connection closes."""
    while True:
        decoded += codec.decode_server(await websocket.get_message())


async def test_peer_names_the_field_that_it_refuses(autojump_clock) -> None:
    """A reader of the message alone knows what to mend."""
    async with serve_in_memory() as server, wire_client(server.connect(), "seedance.v1.json") as client:
        await client.websocket.send_message(
            '{"type":"submit","sequence_id":1,"idempotency_key":"30313233343536373839616263646566",'
            '"prompt":"a","top_p":1e999}'
        )
        client.connection.send(Submit(sequence_id=1, idempotency_key=KEY, prompt="a"))
        refused = await client.refused()
        assert refused.field == "top_p"
        assert refused.message.startswith("top_p must be")


async def test_peer_of_a_tenant_over_its_bandwidth_gets_everything_slowly(autojump_clock) -> None:
    """Nothing is dropped, the rate holds over the whole answer, and it comes evenly."""
    pieces = [f"{number:03} " * 25 for number in range(60)]
    async with serve_in_memory(ScriptedEngine(pieces)) as server:
        server.gate.accounts.update([Tenant(name="local", bytes_per_second=Rate.of(500))])
        async with wire_client(server.connect()) as client:
            await client.submit()
            await client.accepted()
            began_s = trio.current_time()
            arrivals_s, text = [began_s], ""
            while True:
                event = await client.receive()
                arrivals_s.append(trio.current_time())
                if isinstance(event, Flush):
                    break
                text += event.text if isinstance(event, Delta) else ""
        assert text == "".join(pieces)
        sent = 500 + 60 * 109
        assert (sent - 500) / 500 - 2 < trio.current_time() - began_s < sent / 500 + 2
        assert max(later - earlier for earlier, later in pairwise(arrivals_s)) < 1


async def test_peer_over_bandwidth_holds_up_no_other_tenant(autojump_clock) -> None:
    """Each tenant owes its own."""
    pieces = ["x" * 100] * 30
    async with serve_in_memory(ScriptedEngine(pieces)) as server:
        server.gate.accounts.update([Tenant(name="local", bytes_per_second=Rate.of(500))])
        server.gate.accounts.of("local").charge_bytes(10_000)
        account = server.gate.accounts.of("local")
        assert account.bandwidth_wait_s() > 15
        other = server.gate.accounts.of("other")
        assert other.bandwidth_wait_s() == 0
        async with wire_client(server.connect()) as client:
            await client.submit()
            with trio.fail_after(0.5):  # an answer isn't a frame
                await client.accepted()
