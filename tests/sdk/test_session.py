"""One session over one connection: order, bounds, acknowledgements, and what ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing
from attrs import evolve

from seedance_sdk.errors import (
    ClientClosed,
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    RequestTooLarge,
    SeedanceError,
)
from seedance_sdk.reconnect import CLOSE_REACTIONS, Reaction
from seedance_sdk.session import Session
from seedance_wire.messages import (
    Ack,
    Bye,
    Cancel,
    ErrorCode,
    FinishReason,
    GoAway,
    Hello,
    Refused,
    Submit,
)
from tests.sdk.hand_server import (
    FOREVER,
    HandServer,
    asked,
    begin,
    delta,
    final,
    opened,
    running,
)


async def test_session_says_hello_first_and_waits_for_welcome() -> None:
    """Nothing but HELLO leaves before WELCOME."""
    server = HandServer()
    async with running(server) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.submit, asked(), FOREVER)
        hello = await server.expect(Hello)
        assert hello.sdk_name == "seedance-sdk-python"
        await server.silent()
        nursery.cancel_scope.cancel()


async def test_session_counts_submit_and_cancel_together() -> None:
    """Sequence ids are contiguous from 1 over both kinds of message."""
    server = HandServer()
    async with opened(server) as session:
        first = await begin(session, server, 1)
        first.cancel()
        cancel = await server.expect(Cancel)
        assert (cancel.sequence_id, cancel.stream_id) == (2, 1)
        first.cancel()
        first.abandon()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.submit, asked(), FOREVER)
            assert (await server.accept(2)).sequence_id == 3


async def test_session_multiplexes_streams() -> None:
    """Frames of several streams interleave; each reader gets its own."""
    server = HandServer()
    async with opened(server) as session:
        one, two = [await begin(session, server, number) for number in (1, 2)]
        await server.say(delta(1, 1, "a", 0), delta(2, 1, "ä", 0), delta(1, 2, "b", 1), delta(2, 2, "ö", 2))
        await server.say(final(2, 3, "äö"), final(1, 3, "ab"))
        for generation, text in ((one, "ab"), (two, "äö")):
            chunks = [await generation.receive() for _ in range(3)]
            assert "".join(chunk.delta for chunk in chunks if chunk) == text
            assert await generation.receive() is None


async def test_session_refusal_ends_that_request_only() -> None:
    """A refused request is an error with its data; the connection stays."""
    server = HandServer()
    async with opened(server) as session:
        live = await begin(session, server, 1)
        with pytest.raises(Overloaded) as caught:
            async with refusing(server):
                await session.submit(asked(), FOREVER)
        assert caught.value.retry_after_ms == 40
        await server.say(delta(1, 1, "a", 0))
        assert await live.receive() is not None


@asynccontextmanager
async def refusing(server: HandServer) -> AsyncIterator[None]:
    failure: Exception | None = None

    async def refuse() -> None:
        submit = await server.expect(Submit)
        await server.say(
            Refused(
                sequence_id=submit.sequence_id, code=ErrorCode.OVERLOADED, message="full", retry_after_ms=40
            )
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        try:
            yield
        except SeedanceError as error:  # carried around the nursery, which would wrap it
            failure = error
    if failure is not None:
        raise failure


async def test_session_acknowledges_once_in_twenty_milliseconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However fast an application takes frames of however many streams, acks are one message per 20 ms."""
    server = HandServer()
    async with opened(server) as session:
        generations = [await begin(session, server, number) for number in (1, 2)]
        times: list[float] = []
        seen: dict[int, int] = {}

        async def watch() -> None:
            while True:
                ack = await server.expect(Ack)
                times.append(trio.current_time())
                seen.update(ack.processed)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for number in range(1, 101):
                await server.say(*(delta(stream, number, "a", number - 1) for stream in (1, 2)))
                for generation in generations:
                    await generation.receive()
                await trio.sleep(0.001)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    assert seen == {1: 100, 2: 100}
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 0.0199
    assert 5 <= len(times) <= 7


async def test_session_does_not_acknowledge_what_nobody_took() -> None:
    """Received is not taken."""
    server = HandServer()
    async with opened(server) as session:
        await begin(session, server)
        await server.say(delta(1, 1, "a", 0))
        await server.silent()


async def test_session_reader_that_stalls_holds_back_only_its_stream() -> None:
    """One full window in the buffer, and the neighbour's frames pass."""
    server = HandServer()
    async with opened(server) as session:
        stalled, lively = [await begin(session, server, number) for number in (1, 2)]
        for number in range(1, 129):
            await server.say(delta(1, number, "a", number - 1))
        for number in range(1, 300):
            await server.say(delta(2, number, "b", number - 1))
            chunk = await lively.receive()
            assert chunk is not None
            assert chunk.id == number
        assert not stalled.ended


FINAL = [code for code, reaction in CLOSE_REACTIONS.items() if reaction is Reaction.RAISE]


@pytest.mark.parametrize("code", FINAL)
async def test_session_final_end_ends_every_stream_with_the_reason(code: int) -> None:
    """All streams learn why, each with an error of its own, after everything that arrived."""
    server = HandServer()
    async with opened(server) as session:
        generations = [await begin(session, server, number) for number in (1, 2)]
        await server.say(delta(1, 1, "a", 0))
        server.cut(code, "why")
        assert await generations[0].receive() is not None
        errors = []
        for generation in generations:
            with pytest.raises(SeedanceError) as caught:
                await generation.receive()
            assert (caught.value.close_code, caught.value.reason) == (code, "why")
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        assert not session.accepts_requests
        with pytest.raises(SeedanceError):
            await session.submit(asked(), FOREVER)
        assert server.dials == 1


async def test_session_request_beyond_the_streams_waits_for_a_place() -> None:
    """More requests than streams is no error: they take turns."""
    server = HandServer(max_streams=1)
    async with opened(server) as session:
        first = await begin(session, server, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.submit, asked(), FOREVER)
            await server.silent()
            await server.say(final(1, 1, ""))
            await server.accept(2)
        assert await first.receive() is not None


async def test_session_place_is_free_again_after_refusals_and_cancels() -> None:
    """However a request ends, its place is not lost."""
    server = HandServer(max_streams=1)
    async with opened(server) as session:
        for _ in range(3):
            with pytest.raises(Overloaded):
                async with refusing(server):
                    await session.submit(asked(), FOREVER)
        for stream_id in (1, 2, 3):
            generation = await begin(session, server, stream_id)
            generation.abandon()
            await server.expect(Cancel)
            await server.say(final(stream_id, 1, "", FinishReason.CANCELLED))
            await server.expect(Ack)


async def test_session_waiters_learn_that_the_session_is_over() -> None:
    """Those who wait for a place are not left waiting."""
    server = HandServer(max_streams=1)
    async with opened(server) as session:
        await begin(session, server, 1)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(PermissionDenied):
                    await session.submit(asked(), FOREVER)

            for _ in range(3):
                nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            server.cut(1008)


async def test_session_request_too_large_fails_alone() -> None:
    """A request over the server's limit is never sent, and uses up no sequence id."""
    server = HandServer(max_message_bytes=1000)
    async with opened(server) as session:
        with pytest.raises(RequestTooLarge, match="1000"):
            await session.submit(asked("x" * 1000), FOREVER)
        assert (await begin_with_id(session, server)).sequence_id == 1


async def begin_with_id(session: Session, server: HandServer) -> Submit:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.submit, asked(), FOREVER)
        return await server.accept(1)


async def test_session_request_that_no_encoding_carries_fails_alone() -> None:
    """What the wire itself refuses is the caller's error, and the connection stays."""
    server = HandServer()
    request = asked()
    broken = evolve(request, submit=evolve(request.submit, idempotency_key=b"short"))
    async with opened(server) as session:
        with pytest.raises(InvalidRequest, match="idempotency_key"):
            await session.submit(broken, FOREVER)
        await begin(session, server)


async def test_session_cancelled_before_its_turn_sends_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A request that was given up before WELCOME leaves no trace."""
    server = HandServer()
    async with running(server) as session:
        with trio.move_on_after(1):
            await session.submit(asked(), FOREVER)
        await server.greet()
        await server.silent()


async def test_session_cancelled_after_submit_sends_cancel_when_the_stream_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A caller that leaves between SUBMIT and ACCEPTED leaves nothing running on the server."""
    server = HandServer()
    async with opened(server) as session:
        with trio.move_on_after(1):
            await session.submit(asked(), FOREVER)
        await server.accept(7)
        assert (await server.expect(Cancel)).stream_id == 7


async def test_session_goes_on_after_goaway_and_leaves_with_its_last_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """GOAWAY stops new requests only; then the client itself closes, and comes back when it is needed."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        await server.say(GoAway(reason="restart"))
        await server.silent()
        assert not session.accepts_requests
        assert await session.submit(asked(), FOREVER) is None
        await server.say(delta(1, 1, "a", 0), final(1, 2, "a"))
        assert await server.rest() == []  # no goodbye: the session is not over
        assert server.wire.client_close_code == 1000
        chunks = [await generation.receive() for _ in range(2)]
        assert [chunk.delta for chunk in chunks if chunk] == ["a", ""]
        await trio.sleep(3600)
        assert session.accepts_requests
        assert server.dials == 1


async def test_session_aclose_cancels_streams_and_says_bye(autojump_clock: trio.testing.MockClock) -> None:
    """The server hears that we leave; readers hear that the client was closed."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        await session.aclose()
        assert (await server.expect(Cancel)).stream_id == 1
        await server.expect(Bye)
        assert server.wire.client_close_code == 1000
        with pytest.raises(ClientClosed):
            await generation.receive()


@pytest.mark.parametrize("greeted", [True, False])
async def test_session_aclose_is_bounded_when_the_server_reads_nothing(
    greeted: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """A dead server costs ``close_timeout_s`` at most."""
    server = HandServer()
    async with running(server) as session:
        if greeted:
            await server.greet()
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(partial(_ignoring_errors, session))
                await trio.testing.wait_all_tasks_blocked()
                began = trio.current_time()
                await session.aclose()
        else:
            began = trio.current_time()
            await session.aclose()
        assert trio.current_time() - began <= 2.001


async def _ignoring_errors(session: Session) -> None:
    with pytest.raises(ClientClosed):
        await session.submit(asked(), FOREVER)


async def test_session_closed_with_requests_in_line_sends_none_of_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What has failed for its caller is not sent behind their back."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(_ignoring_errors, session)
        await trio.testing.wait_all_tasks_blocked()  # eight are on their way, one waits at the door
        nursery.start_soon(session.aclose)
        await trio.testing.wait_all_tasks_blocked()
        kinds = [type(event) for event in await server.rest()]
    assert kinds == [Submit] * 9 + [Bye]


async def test_session_sends_nothing_after_the_server_broke_the_protocol() -> None:
    """What is due in the same moment is dropped; tried often, because the order of two tasks is a toss."""
    for _ in range(20):
        server = HandServer()
        async with opened(server) as session:
            generation = await begin(session, server)
            await server.say(delta(1, 1, "a", 0))
            await trio.testing.wait_all_tasks_blocked()
            server.wire.to_client.send_nowait(b"\xff")
            session.note_processed(1, 1)
            assert await generation.receive() is not None
            with pytest.raises(ProtocolError):
                await generation.receive()
