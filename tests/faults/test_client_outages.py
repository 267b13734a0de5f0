"""Requests and streams of a client whose connection is lost: each goes on, or learns why not."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    RequestTooLarge,
    StreamExpired,
    StreamNotFound,
    StreamTruncated,
)
from seedance_sdk.generation import Generation
from seedance_sdk.testing import Answer, Cut, ScriptedServer
from seedance_wire.messages import (
    Ack,
    AckLevel,
    Cancel,
    Checkpoint,
    Durability,
    FinishReason,
    Flow,
    FlowAction,
    GoAway,
    Phase,
    ResumeFailure,
    Status,
    Submit,
)
from tests.sdk.hand_server import FOREVER, HandServer, asked, begin, delta, final, opened


async def rest_of(generation: Generation) -> str:
    text = ""
    while (chunk := await generation.receive()) is not None:
        text += chunk.delta
    return text


async def test_loses_what_the_server_has_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    """A server without its journal: streams end with StreamNotFound, and requests go on in a new session."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        generation = await begin(session, server)
        await server.say(delta(1, 1, "a", 0))
        assert await generation.receive() is not None
        await server.expect(Ack)
        nursery.start_soon(session.submit, asked("waiting"), FOREVER)
        first = await server.expect(Submit)
        server.cut(1012)
        await server.again(present=False)
        again = await server.accept(1)
        assert (again.prompt, again.idempotency_key) == ("waiting", first.idempotency_key)
        with pytest.raises(StreamNotFound):
            await generation.receive()
        assert session.id == "another"
        assert generation.session_id == "s"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(ResumeFailure.TRUNCATED, StreamTruncated), (ResumeFailure.EXPIRED, StreamExpired)],
)
async def test_rejected_resume_ends_that_stream_only(
    failure: ResumeFailure, kind: type[StreamTruncated], autojump_clock: trio.testing.MockClock
) -> None:
    """A stream that can't go on says what there is still; its neighbour goes on."""
    server = HandServer()
    async with opened(server) as session:
        gone, live = [await begin(session, server, number) for number in (1, 2)]
        server.cut()
        await server.again()
        assert (await server.refuse_resume(failure, first_available_id=8, last_id=12)) == 1
        assert (await server.resume()).stream_id == 2
        await server.say(final(2, 1, ""))
        with pytest.raises(kind) as caught:
            await gone.receive()
        assert (caught.value.first_available_id, caught.value.last_id) == (8, 12)
        assert await rest_of(live) == ""


async def test_stream_that_is_not_kept_is_lost_with_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Durability none promises nothing beyond the connection; its end says why."""
    server = HandServer()
    async with opened(server) as session:
        none = await begin(session, server, 1, Durability.NONE)
        kept = await begin(session, server, 2)
        await server.say(delta(1, 1, "a", 0))
        server.cut(1011, "crashed")
        assert await none.receive() is not None
        with pytest.raises(ConnectionLost) as caught:
            await none.receive()
        assert (caught.value.close_code, caught.value.reason) == (1011, "crashed")
        await server.again()
        await server.resume()
        await server.say(final(2, 1, ""))
        assert await rest_of(kept) == ""


async def test_request_that_was_sent_and_not_answered_is_sent_again_with_its_key(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A request lost on its way, or its answer on the way back, starts one generation."""
    server = HandServer()
    results: list[Generation | None] = []
    async with opened(server) as session, trio.open_nursery() as nursery:

        async def submit() -> None:
            results.append(await session.submit(asked(), FOREVER))

        nursery.start_soon(submit)
        first = await server.expect(Submit)
        server.cut()
        await server.again()
        second = await server.accept(1)
        assert (second.sequence_id, second.idempotency_key) == (first.sequence_id, first.idempotency_key)
    assert results[0] is not None


async def test_requests_made_during_an_outage_wait_for_its_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nobody is refused while the client is connecting, and what was given up meanwhile is not sent."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        await begin(session, server)
        server.refusal = ConnectFailed("refused")
        server.cut()
        nursery.start_soon(session.submit, asked("patient"), FOREVER)
        with trio.move_on_after(5):
            await session.submit(asked("hasty"), FOREVER)
        server.refusal = None
        await server.again()
        await server.resume()
        assert (await server.accept(2)).prompt == "patient"
        await server.silent()


async def test_holds_what_many_streams_want_during_an_outage_and_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Memory is bounded by the streams: one message and one number for each, however long nobody answers."""
    server = HandServer(max_streams=10)
    async with opened(server) as session, trio.open_nursery() as nursery:
        generation = await begin(session, server)
        server.hangs = True
        server.cut()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(500):
            nursery.start_soon(session.submit, asked(), FOREVER)
            session.note_processed(1, 0)
            session.request_cancel(generation)
        await trio.sleep(30)
        assert len(session._generations) == 10
        assert len(session._outbox._steps) == 10  # nine requests and a cancel
        assert len(session._outbox._acks) == 1
        assert session._core.unanswered == 0
        nursery.cancel_scope.cancel()


async def test_cancel_during_an_outage_reaches_the_server_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The model stops as soon as anybody can tell it to, also where the first message was lost."""
    server = HandServer()
    async with opened(server) as session:
        left, cancelled = [await begin(session, server, number) for number in (1, 2)]
        cancelled.cancel()
        await server.expect(Cancel)
        server.cut()
        left.abandon()
        await server.again()
        assert {(await server.resume()).stream_id for _ in range(2)} == {1, 2}
        assert {(await server.expect(Cancel)).stream_id for _ in range(2)} == {1, 2}
        for number in (1, 2):
            await server.say(final(number, 1, "", FinishReason.CANCELLED))
        await trio.sleep(1)
        assert session.load == 0


async def test_stream_goes_on_elsewhere_when_a_draining_server_closes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GOAWAY, then the close, then the rest of the stream from whoever has it now."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        await server.say(GoAway(reason="restart"))
        await server.say(delta(1, 1, "a", 0))
        server.cut(4001)
        await server.again()
        assert session.accepts_requests
        await server.resume()
        await server.say(delta(1, 2, "b", 1), final(1, 3, "ab"))
        assert await rest_of(generation) == "ab"


async def test_request_that_continues_a_stream_waits_for_its_server_to_leave(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Earlier turns are known in their session only, so the next turn follows it to another server."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        await begin(session, server)
        await server.say(GoAway(reason="restart"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(session.submit, asked(continues=1), FOREVER)
        await server.silent()
        server.cut(1001)
        await server.again()
        await server.resume()
        assert (await server.accept(2)).continues == 1


async def test_request_too_long_for_a_proxy_fails_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """1009 ends the request that was too large, and the others go on."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        stream = await begin(session, server)
        nursery.start_soon(session.submit, asked("short"), FOREVER)
        await server.expect(Submit)

        async def fail() -> None:
            with pytest.raises(RequestTooLarge) as caught:
                await session.submit(asked("x" * 1000), FOREVER)
            assert caught.value.close_code == 1009

        nursery.start_soon(fail)
        await server.expect(Submit)
        server.forget_last_message()
        server.cut(1009)
        await server.again()
        await server.resume()
        assert (await server.accept(2)).prompt == "short"
        await server.silent()
        await server.say(final(1, 1, ""))
        assert await stream.receive() is not None


PIECES = ("Hé", "llo", " 🦊", "\n\n", "end")


@pytest.mark.parametrize("subprotocol", ["seedance.v1", "seedance.v1.json", "seedance.v1.raw"])
@pytest.mark.parametrize("places", [[place] for place in range(6)] + [list(range(6))], ids=str)
async def test_cut_at_every_frame_changes_no_byte(
    places: list[int], subprotocol: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Before the first frame, between any two, before the last, or at all of them: the same answer."""
    script: list[str | Cut] = []
    for place in range(6):
        script += [Cut()] * (place in places) + list(PIECES[place : place + 1])
    server = ScriptedServer(Answer(*script))
    async with AsyncSeedanceClient(connector=server, subprotocol=subprotocol) as client:
        stream = await client.complete(prompt="x", stream=True)
        chunks = [chunk async for chunk in stream]
    assert tuple(chunk.delta for chunk in chunks) == (*PIECES, "")
    assert [chunk.id for chunk in chunks] == [1, 2, 3, 4, 5, 6]
    assert stream.reconnects == len(places)
    assert len(server.requests) == 1


async def test_deadline_passes_during_an_outage(autojump_clock: trio.testing.MockClock) -> None:
    """Time goes on without a connection: the error comes in time, and the cancel when it can."""
    server = ScriptedServer(Answer("a", endless=True))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.complete(prompt="x", stream=True, deadline=5)
        await stream.receive()
        server.stop()
        with pytest.raises(DeadlineExceeded) as caught:
            await stream.receive()
        assert caught.value.partial == "a"
        assert trio.current_time() == pytest.approx(5)
        server.start()
        await trio.sleep(20)
        assert server.cancelled == [1]


async def test_request_that_crosses_goaway_may_be_tried_elsewhere() -> None:
    """A request that was not sent when GOAWAY came is handed back, not failed."""
    server = HandServer(max_streams=1)
    async with opened(server) as session:
        await begin(session, server)
        results: list[object] = []

        async def submit() -> None:
            results.append(await session.submit(asked(), FOREVER))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            await trio.testing.wait_all_tasks_blocked()
            await server.say(GoAway(reason="restart"))
            await server.say(final(1, 1, ""))
        assert results == [None]


async def test_takes_no_word_about_a_stream_for_progress_but_its_pieces(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A server that greets, resumes, explains and hangs up is not hammered either."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        for _ in range(8):
            server.cut()
            await server.again()
            await server.resume()
            for said in (
                Status(stream_id=1, phase=Phase.QUEUED, position=1),
                Flow(stream_id=1, action=FlowAction.RUN, window=32),
                Checkpoint(sequence_id=1, timestamp_ms=1, ack_level=AckLevel.COMMITTED),
            ):
                await server.say(said)
            await trio.testing.wait_all_tasks_blocked()
        waits = [
            later - earlier
            for earlier, later in zip(server.dialed_at[1:], server.dialed_at[2:], strict=False)
        ]
        assert waits == pytest.approx([0.25, 1.5, 3, 6, 12, 21, 35])
        await server.say(final(1, 1, ""))
        assert await rest_of(generation) == ""
