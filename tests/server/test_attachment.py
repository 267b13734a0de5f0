"""Tests of `seedance_server.attachment`: cases of a conversation, over the whole server in memory."""

from contextlib import suppress

import pytest
import trio
from trio_websocket import ConnectionClosed

from seedance_server.config import Config
from seedance_server.engine.errors import NumericalError
from seedance_server.journal.errors import JournalFull
from seedance_server.journal.records import StreamState
from seedance_server.session_registry import RegistryStatistics
from seedance_server.tenants import Rate, Tenant
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.codec import make_codec
from seedance_wire.errors import CloseCode
from seedance_wire.messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Delta,
    Durability,
    Error,
    ErrorCode,
    FinishReason,
    Flow,
    Flush,
    OnDisconnect,
    Refused,
    Resumed,
)
from tests.server.failing_journal import FailingJournal
from tests.server.wire_client import KEY, wire_client


async def test_attachment_numbers_its_streams_from_one(autojump_clock) -> None:
    """Each session counts for itself; ACCEPTED names the request it answers."""
    async with serve_in_memory() as server:
        for _ in range(2):
            async with wire_client(server.connect()) as client:
                for number in (1, 2, 3):
                    sequence_id = await client.submit()
                    assert await client.receive() == Accepted(
                        sequence_id=sequence_id, stream_id=number, durability=Durability.COMMITTED
                    )
                    text, end = await client.until_end()
                    assert text == "Hello, world!"
                    assert end.final.finish_reason is FinishReason.STOP


async def test_attachment_runs_many_streams_at_once_each_with_its_own_text(autojump_clock) -> None:
    """Frames of different streams mix, pieces of one keep their order, ACCEPTED comes first."""
    engine = ScriptedEngine(lambda request: [f"{request.prompt_ids[0]}:{i} " for i in range(40)])
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        for index in range(20):
            await client.submit(prompt=chr(65 + index))
        texts, ended = {}, set()
        while len(ended) < 20:
            event = await client.receive()
            if isinstance(event, Accepted):
                texts[event.stream_id] = ""
            elif isinstance(event, Delta):
                texts[event.stream_id] += event.text
            elif isinstance(event, Flush) and event.final:
                ended.add(event.stream_id)
        assert texts == {number: "".join(f"{64 + number}:{i} " for i in range(40)) for number in range(1, 21)}


async def test_attachment_refuses_bad_input_beside_a_running_stream_whose_text_stays_the_same(
    autojump_clock,
) -> None:
    """Only the guilty request fails; its neighbour never notices, the connection stays."""
    bad = [
        ({"prompt": ""}, ErrorCode.INVALID_REQUEST, "prompt"),
        ({"prompt": "  "}, ErrorCode.INVALID_REQUEST, "prompt"),
        ({"token_ids": ()}, ErrorCode.INVALID_REQUEST, "token_ids"),
        ({"messages": ()}, ErrorCode.INVALID_REQUEST, "messages"),
        ({"text": ""}, ErrorCode.INVALID_REQUEST, "messages"),
        ({"sampling": {"temperature": float("nan")}}, ErrorCode.INVALID_REQUEST, "temperature"),
        ({"sampling": {"min_p": float("inf")}}, ErrorCode.INVALID_REQUEST, "min_p"),
        ({"sampling": {"top_k": 2**31}}, ErrorCode.INVALID_REQUEST, "top_k"),
        ({"sampling": {"max_tokens": 0}}, ErrorCode.INVALID_REQUEST, "max_tokens"),
        ({"prompt": "x" * 4096}, ErrorCode.CONTEXT_LENGTH_EXCEEDED, None),
        ({"model": "gpt"}, ErrorCode.MODEL_NOT_FOUND, "model"),
        ({"idempotency_key": b"short"}, ErrorCode.INVALID_REQUEST, "idempotency_key"),
        ({"deadline_ms": 0}, ErrorCode.DEADLINE_EXCEEDED, None),
    ]
    engine = ScriptedEngine([f"{number} " for number in range(100)])
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        await client.submit()
        await client.accepted()
        sent = {}
        for more, code, field in bad:
            if "idempotency_key" in more:  # our own encoder would not write it
                continue
            sent[await client.submit(**more)] = (code, field)
        refused, text = {}, ""
        while True:
            event = await client.receive()
            if isinstance(event, Refused):
                refused[event.sequence_id] = (event.code, event.field)
            elif isinstance(event, Delta):
                text += event.text
            elif isinstance(event, Flush) and event.final:
                break
        assert refused == sent
        assert text == "".join(f"{number} " for number in range(100))


@pytest.mark.parametrize("max_tokens", [1, 4096, 4097, 10**8, 2**63 - 1, None])
async def test_attachment_takes_any_bound_on_tokens(autojump_clock, max_tokens) -> None:
    """max_tokens is a bound, not a reservation: none of them hangs."""
    async with serve_in_memory() as server, wire_client(server.connect()) as client:
        await client.submit(sampling={"max_tokens": max_tokens})
        await client.accepted()
        text, end = await client.until_end()
        assert text == ("Hello" if max_tokens == 1 else "Hello, world!")
        reason = FinishReason.LENGTH if max_tokens == 1 else FinishReason.STOP
        assert end.final.finish_reason is reason


async def test_attachment_limits_streams_and_serves_again_when_one_ends(autojump_clock) -> None:
    """N are served, N + 1 is refused and may come again."""
    config = Config(model_path="m", max_streams=2)
    engine = ScriptedEngine(["x"] * 20)
    async with serve_in_memory(engine, config=config) as server, wire_client(server.connect()) as client:
        await client.submit()
        await client.submit()
        third = await client.submit()
        events = [await client.receive() for _ in range(3)]
        (refused,) = [event for event in events if isinstance(event, Refused)]
        assert (refused.sequence_id, refused.code, refused.retryable) == (third, ErrorCode.OVERLOADED, True)
        ended = 0
        while ended < 2:
            event = await client.receive()
            ended += isinstance(event, Flush) and event.final is not None
        await client.submit()
        await client.accepted()


async def test_attachment_cancels_a_running_stream_and_forgives_a_late_cancel(autojump_clock) -> None:
    """The answer is the normal end with reason cancelled; one that ended already isn't anybody's business."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        await client.submit()
        stream_id = await client.accepted()
        await client.receive()
        await client.cancel(stream_id)
        _, end = await client.until_end()
        assert end.final.finish_reason is FinishReason.CANCELLED
        await client.cancel(stream_id)
        await client.submit()  # the same request again, right after its cancel: fully independent
        assert await client.accepted() == stream_id + 1
        await client.cancel(stream_id + 1)
        await client.until_end()
        assert engine.active == ()


async def test_attachment_ends_at_the_deadline_from_the_requests_receipt(autojump_clock) -> None:
    """The deadline ends a running stream with its own code."""
    engine = ScriptedEngine(["x"] * 100_000)
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        began_s = trio.current_time()
        await client.submit(deadline_ms=500)
        await client.accepted()
        _, end = await client.until_end()
        assert end.code is ErrorCode.DEADLINE_EXCEEDED
        assert trio.current_time() - began_s == pytest.approx(0.5)


async def test_attachment_contains_a_sequences_failure(autojump_clock) -> None:
    """One row without probabilities fails alone; the connection goes on."""
    engine = ScriptedEngine(["a"] * 5, errors={3: NumericalError("NaN")})
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        await client.submit()
        await client.accepted()
        text, end = await client.until_end()
        assert (text, end.code) == ("aaa", ErrorCode.NUMERICAL_ERROR)
        await client.submit(sampling={"max_tokens": 1})
        await client.accepted()
        assert (await client.until_end())[0] == "a"


async def test_attachment_of_a_dead_engine_says_what_is_lost_and_closes_at_once(autojump_clock) -> None:
    """What isn't kept ends with a retryable error; what is stays live in the journal for the next process."""
    engine = ScriptedEngine(["a"] * 50, fail_at_step=10)
    async with serve_in_memory(engine) as server:
        async with wire_client(server.connect()) as client:
            await client.submit(on_disconnect=OnDisconnect.CANCEL)
            await client.submit(durability=Durability.NONE)
            said = []
            with suppress(ConnectionClosed):
                while True:
                    said.append(await client.receive())
            assert await client.close_code() == 1011
            [end] = [event for event in said if isinstance(event, Error | Flush)]
            assert (end.stream_id, end.code, end.retryable) == (2, ErrorCode.ENGINE_FAILED, True)
            assert trio.current_time() < 1
        assert "scripted failure" in server.door.house.readiness().barred
        left = await server.journal.find_stream(client.welcome.session_id, 1)
        assert (left.state, left.last_id) == (StreamState.LIVE, 9)
        assert server.registry.statistics().streams == 0


async def test_one_unread_stream_does_not_slow_another_of_the_same_connection(autojump_clock) -> None:
    """Acknowledged streams run at full speed beside twenty that are read but never acknowledged."""
    engine = ScriptedEngine([f"{number}" for number in range(400)])
    async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
        client.acks = False
        for _ in range(20):
            await client.submit()
        seen = {}
        while len(seen) < 20 or min(seen.values()) < 32:
            event = await client.receive()
            if isinstance(event, Delta):
                seen[event.stream_id] = event.id
        await trio.sleep(1)
        assert len(engine.paused) == 20
        began_s = trio.current_time()
        await client.submit()
        while not isinstance(event := await client.receive(), Accepted):
            assert isinstance(event, Flow)  # behind the frame that filled the window
        quick = event.stream_id
        while True:
            event = await client.receive()
            assert event.stream_id == quick
            await client.send(Ack(processed=((quick, event.id),)))
            if isinstance(event, Flush) and event.final:
                break
        assert trio.current_time() - began_s == pytest.approx(400 * 0.01, rel=0.05)
        await client.send(Ack(processed=((1, 32),)))
        assert (await client.receive()).stream_id == 1


async def test_attachment_says_cancel_of_a_stream_that_never_was_is_a_violation(autojump_clock) -> None:
    """Numbers come from the server; one it never gave out isn't a race."""
    async with serve_in_memory() as server, wire_client(server.connect()) as client:
        payload = make_codec("seedance.v1").encode([Cancel(sequence_id=1, stream_id=7)])
        await client.websocket.send_message(payload)
        assert await client.close_code() == 4400


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.COMMITTED])
async def test_attachment_whose_connection_breaks_down_leaves_nothing_held(
    autojump_clock, durability
) -> None:
    """Cut at any time of a request that ends with it, before or after its commit: nothing is left."""
    engine = ScriptedEngine(["x"] * 1000)
    async with serve_in_memory(engine) as server:
        for tenths_ms in range(0, 120, 7):
            async with wire_client(server.connect()) as client:
                await client.submit(durability=durability, on_disconnect=OnDisconnect.CANCEL)
                await trio.sleep(tenths_ms / 1e4)
            await trio.sleep(0.1)
            assert engine.active == ()
            assert server.registry.statistics() == RegistryStatistics(0, 0, 0, 0)
            assert server.admission.open_requests == 0


@pytest.mark.parametrize("how", ["cut", "bye", "violation", "superseded"])
@pytest.mark.parametrize("lives_with_it", [True, False])
@pytest.mark.parametrize("durability", [Durability.NONE, Durability.COMMITTED])
async def test_attachment_whose_commit_ends_after_its_connection_starts_no_generation(
    autojump_clock, how, lives_with_it, durability
) -> None:
    """Nobody was told of it: it ends if it was to end with the connection, else it waits for its request."""
    journal = FailingJournal()
    engine = ScriptedEngine(["a", "b"])
    on_disconnect = OnDisconnect.CANCEL if lives_with_it else OnDisconnect.CONTINUE
    request = {"idempotency_key": KEY, "durability": durability, "on_disconnect": on_disconnect}
    async with serve_in_memory(engine, journal=journal) as server:
        async with wire_client(server.connect()) as client:
            journal.commit_s = 1
            await client.submit(**request)
            await trio.sleep(0.1)
            journal.commit_s = 0
            match how:
                case "bye":
                    await client.send(Bye())
                case "violation":
                    await client.websocket.send_message("not what was agreed on")
                case "superseded":
                    async with wire_client(server.connect(), former=client.welcome):
                        pass
            if how != "cut":
                await client.close_code()  # which waits for the commit
        if how == "cut":
            await trio.sleep(0.1)
            assert server.registry.statistics().sessions == 1, "the commit still needs it"
        await trio.sleep(1.1)
        assert (engine.requests, server.admission.open_requests) == ([], 0)
        assert server.registry.statistics() == RegistryStatistics(0, 0, 0, 0)
        record = await journal.find_stream(client.welcome.session_id, 1)
        if durability is Durability.NONE:
            assert record.state is StreamState.ABANDONED
        elif lives_with_it:
            assert (record.state, record.finish) == (StreamState.FINISHED, "cancelled")
        else:
            async with wire_client(server.connect(), former=client.welcome, known=0) as again:
                await again.submit(**request)
                assert (await again.receive()).replayed
                assert isinstance(await again.resume(1), Resumed)
                assert (await again.until_end())[0] == "ab"


async def test_attachment_whose_client_lets_answers_pile_up_ends(autojump_clock) -> None:
    """An answer that finds no room is not swallowed: the connection ends, and the client asks again."""
    config = Config(model_path="m", outbox_control_messages=1)
    journal = FailingJournal()
    async with (
        serve_in_memory(config=config, journal=journal) as server,
        wire_client(server.connect()) as client,
    ):
        journal.commit_s = 0.1  # so that all are answered at the same moment
        for _ in range(5):
            await client.submit(model="none")
        with trio.fail_after(10):
            assert await client.close_code() == CloseCode.SLOW_READER


async def test_attachment_that_was_superseded_does_nothing_more(autojump_clock) -> None:
    """The older connection's requests are nobody's: what it still says isn't carried out."""
    engine = ScriptedEngine(["x"] * 1000)

    async def go_on(client) -> None:
        while True:
            await client.submit()
            await trio.sleep(0.01)

    async with serve_in_memory(engine) as server, wire_client(server.connect()) as old:
        async with wire_client(server.connect(), former=old.welcome):
            with pytest.raises(ConnectionClosed):
                await go_on(old)
        assert engine.requests == []


async def test_attachment_tells_of_a_refusal_though_it_cannot_be_noted(autojump_clock) -> None:
    """A full journal mustn't hold back the very answer that says so; it is noted when there is room."""
    journal = FailingJournal()
    journal.faults = {name: lambda *_: JournalFull(new_work=False) for name in ("submit", "record_message")}
    async with serve_in_memory(journal=journal) as server, wire_client(server.connect()) as client:
        began_s = trio.current_time()
        await client.submit()
        assert (await client.refused()).code is ErrorCode.JOURNAL_FULL
        assert trio.current_time() - began_s < 1.1
        journal.faults.clear()
        await trio.sleep(1)
        await client.submit()
        await client.accepted()
        await client.until_end()
        assert client.checkpoints[-1].sequence_id == 2


@pytest.mark.parametrize("limit", [{"max_generations": 1}, {"max_streams": 1}, "streams", "tokens"])
async def test_attachment_answers_a_request_again_whatever_is_used_up_by_itself(
    autojump_clock, limit
) -> None:
    """A request sent again is over a limit that it fills by itself; it is no new one, and answered."""
    engine = ScriptedEngine(["a"] * 200)
    config = Config(model_path="m", **(limit if isinstance(limit, dict) else {}))
    async with serve_in_memory(engine, config=config, step_s=0.1) as server:
        tenant = {"streams": {"max_streams": 1}, "tokens": {"tokens_per_minute": Rate(300, 300, 300)}}
        server.gate.accounts.update([Tenant(name="local", **tenant.get(str(limit), {}))])
        request = {"idempotency_key": KEY, "sampling": {"max_tokens": 250}}
        async with wire_client(server.connect()) as client:
            await client.submit(**request)
            await client.accepted()
            await client.frames(3)
        async with wire_client(server.connect(), former=client.welcome, known=0) as client:
            await client.submit(idempotency_key=bytes(16), sampling={"max_tokens": 250})
            refused = await client.refused()
            assert refused.code in (ErrorCode.OVERLOADED, ErrorCode.RATE_LIMITED)
            await client.submit(**request)
            accepted = await client.receive()
            assert isinstance(accepted, Accepted), accepted
            assert accepted.replayed
        assert len(engine.requests) == 1
