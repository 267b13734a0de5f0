"""A session that outlives its connections: every way of losing one, and what its streams notice of it."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from seedance_sdk.causes import error_of_close, error_of_status
from seedance_sdk.errors import (
    AuthenticationError,
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    RequestTooLarge,
    SeedanceError,
    StreamTruncated,
    Superseded,
)
from seedance_sdk.generation import Generation
from seedance_sdk.limits import Limits
from seedance_sdk.reconnect import CLOSE_REACTIONS, Reaction, ReconnectDetails
from seedance_wire.messages import (
    Ack,
    Durability,
    Submit,
)
from tests.sdk.hand_server import FOREVER, HandServer, asked, begin, delta, final, opened, running

SURVIVED = [code for code, reaction in CLOSE_REACTIONS.items() if reaction is not Reaction.RAISE]


async def rest_of(generation: Generation) -> str:
    text = ""
    while (chunk := await generation.receive()) is not None:
        text += chunk.delta
    return text


async def test_link_asks_for_what_is_missing_at_once() -> None:
    """A gap is mended on the connection that stands, though the application has nothing to say."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        server.lose(delta(1, 1, "Hé", 0))
        await server.say(delta(1, 2, "llo", 3))
        asked_for = await server.resume()
        assert (asked_for.stream_id, asked_for.last_processed_id) == (1, 0)
        await server.say(delta(1, 1, "Hé", 0), delta(1, 2, "llo", 3), final(1, 3, "Héllo"))
        assert await rest_of(generation) == "Héllo"
        assert generation.reconnects == 0


@pytest.mark.parametrize("code", [*SURVIVED, 1014, 3000, 4999])
async def test_link_is_restored_after_every_code_that_is_not_final(
    code: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The iterator goes on: no error, no piece lost, none twice."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        await server.say(delta(1, 1, "Hé", 0))
        server.cut(code, "why")
        hello = await server.again()
        assert (hello.session_id, hello.resume_token) == ("s", b"token")
        asked_for = await server.resume()
        assert (asked_for.stream_id, asked_for.last_processed_id) == (1, 1)
        await server.say(delta(1, 2, "llo", 3), final(1, 3, "Héllo"))
        assert await rest_of(generation) == "Héllo"
        assert generation.reconnects == 1


@pytest.mark.parametrize(
    ("code", "wait_s"),
    [(1006, 0.125), (1012, 0.125), (1001, 0.25), (4001, 0.25), (1013, 1.125), (4429, 1.125)],
)
async def test_link_waits_as_the_code_asks(
    code: int, wait_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Jitter after a cut, half a second at most after a move, more where the server is overloaded."""
    server = HandServer()
    async with opened(server) as session:
        await begin(session, server)
        began = trio.current_time()
        server.cut(code)
        await server.again()
        assert server.dialed_at[1] - began == pytest.approx(wait_s)


async def test_link_survives_a_flap_of_twenty_cuts_in_two_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each connection brings one piece; the waits stay short, since each made progress."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        began = trio.current_time()
        for number in range(1, 21):
            await server.say(delta(1, number, "x", number - 1))
            await trio.testing.wait_all_tasks_blocked()
            server.cut()
            await server.again()
            assert (await server.resume()).last_processed_id == number
        assert trio.current_time() - began == pytest.approx(20 * 0.125)
        await server.say(final(1, 21, "x" * 20))
        assert await rest_of(generation) == "x" * 20
        assert generation.reconnects == 20


async def test_link_waits_longer_and_longer_for_a_server_that_only_greets(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """WELCOME is no progress: a server that hangs up behind it is not hammered."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        for _ in range(8):
            server.cut()
            await server.again()
        waits = [
            later - earlier
            for earlier, later in zip(server.dialed_at[1:], server.dialed_at[2:], strict=False)
        ]
        assert waits == pytest.approx(
            [0.25, 1 + 0.5, 2 + 1, 4 + 2, 8 + 4, 16 + 5, 30 + 5]  # the third cut opens the circuit
        )
        await server.resume()
        await server.say(final(1, 1, ""))
        assert await rest_of(generation) == ""


async def test_link_finds_a_server_that_was_gone_for_half_a_minute(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Attempts go on through refused connections, and the hook hears of each."""
    server = HandServer()
    heard: list[ReconnectDetails] = []
    async with opened(server, on_reconnect=heard.append) as session:
        generation = await begin(session, server)
        server.refusal = ConnectFailed("refused")
        began = trio.current_time()
        server.cut()
        await trio.sleep(30)
        server.refusal = None
        await server.again()
        assert trio.current_time() - began < 44
        await server.resume()
        await server.say(final(1, 1, ""))
        assert await rest_of(generation) == ""
    assert [details.attempt for details in heard] == list(range(1, len(heard) + 1))
    assert heard[0].caused_by.close_code == 1006
    assert {type(details.caused_by) for details in heard[1:]} == {ConnectFailed}
    assert {details.streams for details in heard} == {1}
    assert len(heard) == server.dials - 1


@pytest.mark.parametrize("how", ["refused", "silent", "never greets", "black hole"])
async def test_link_is_given_up_after_its_time(how: str, autojump_clock: trio.testing.MockClock) -> None:
    """``reconnect_timeout_s`` without a WELCOME, whatever the server does: a typed error with the reason.

    Where the circuit's next probe would come later, it is given up before.
    """
    server = HandServer()
    async with opened(server, Limits(reconnect_timeout_s=20)) as session:
        generation = await begin(session, server)
        await server.say(delta(1, 1, "a", 0))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        if how == "refused":
            server.refusal = ConnectFailed("refused")
        elif how == "black hole":
            server.hangs = True
        server.cut(1006, "cut")
        if how == "never greets":

            async def hang_up() -> None:
                while True:
                    await trio.sleep(0.3)
                    server.wire.close(1011)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(hang_up)
                with pytest.raises(ConnectionLost):
                    await rest_of(generation)
                nursery.cancel_scope.cancel()
        else:
            assert await generation.receive() is not None
            with pytest.raises(ConnectionLost, match="within 20 s") as caught:
                await rest_of(generation)
            assert caught.value.retryable
            assert caught.value.__cause__ is not None
        took_s = trio.current_time() - began
        probes_fail_at_once = how in ("refused", "never greets")
        assert took_s < 20.4
        assert took_s > (20 - 16 if probes_fail_at_once else 19.6)
        with pytest.raises(ConnectionLost):
            await session.submit(asked(), FOREVER)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (error_of_status(401, "", None), AuthenticationError),
        (ConnectFailed("wrong certificate", retryable=False), ConnectFailed),
        (error_of_close(4409, ""), Superseded),
        (error_of_close(4410, ""), StreamTruncated),
    ],
)
async def test_link_is_given_up_at_once_for_what_is_final(
    refusal: SeedanceError, kind: type[SeedanceError], autojump_clock: trio.testing.MockClock
) -> None:
    """A key that was revoked, a certificate that changed, a session that another has: no second attempt."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        server.refusal = refusal
        server.cut()
        with pytest.raises(kind):
            await rest_of(generation)
        assert server.dials == 2


async def test_link_honours_retry_after(autojump_clock: trio.testing.MockClock) -> None:
    """Not before the server's time, and not at all where that is longer than anybody waits."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        server.refusal = error_of_status(503, "", 7000)
        server.cut()
        await trio.sleep(1)
        assert server.dials == 2
        server.refusal = error_of_status(429, "", 3_600_000)
        began = server.dialed_at[1]
        with pytest.raises(ConnectionLost) as caught:
            await rest_of(generation)
        assert 7 <= server.dialed_at[2] - began <= 7.5
        assert server.dials == 3
        assert (caught.value.status, caught.value.retry_after_ms) == (429, 3_600_000)
        assert trio.current_time() == server.dialed_at[2]


async def test_link_first_connection_is_not_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    """Address or key may be wrong; whoever made the mistake hears of it now."""
    server = HandServer()
    server.refusal = error_of_status(503, "", 1000)
    async with running(server) as session:
        with pytest.raises(Overloaded):
            await session.submit(asked(), FOREVER)
    assert server.dials == 1


async def test_link_sleeps_while_nobody_needs_it_and_wakes_for_a_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An idle client does not knock on a server's door; the next request does, in the same session."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        generation = await begin(session, server)
        await server.say(final(1, 1, ""))
        assert await rest_of(generation) == ""
        await server.expect(Ack)
        server.cut(1001)
        await trio.sleep(3600)
        assert server.dials == 1
        nursery.start_soon(session.submit, asked(), FOREVER)
        began = trio.current_time()
        assert (await server.again()).session_id == "s"
        assert trio.current_time() == began
        await server.accept(2)


async def test_link_outage_of_a_sleeper_begins_with_the_request_and_ends_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Time that nobody waited does not count."""
    server = HandServer()
    async with opened(server) as session:
        server.refusal = ConnectFailed("refused")
        server.cut()
        await trio.sleep(3600)
        began = trio.current_time()
        with pytest.raises(ConnectionLost):
            await session.submit(asked(), FOREVER)
        assert 60 < trio.current_time() - began < 100


async def test_link_wakes_from_an_outage_that_nobody_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Attempts stop when the last reader leaves in an outage, and its age does not count later."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        generation = await begin(session, server)
        server.refusal = ConnectFailed("refused")
        server.cut()
        await trio.sleep(5)
        generation.detach()
        await trio.sleep(3600)
        server.refusal = None
        nursery.start_soon(session.submit, asked(), FOREVER)
        await server.again()
        await server.resume()
        await server.accept(2)


async def test_link_restored_lasts_longer_than_the_time_to_restore_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The bound is on being without a connection, not on the next one."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        server.cut()
        await server.again()
        await server.resume()
        await trio.sleep(3600)
        await server.say(final(1, 1, ""))
        assert await rest_of(generation) == ""
    assert server.dials == 2


async def test_link_lost_while_it_closes_is_not_restored(autojump_clock: trio.testing.MockClock) -> None:
    """Goodbye could not be said, and nobody waits until it can."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        await begin(session, server)
        await server.say(delta(1, 1, "a", 0), delta(1, 2, "b", 1))
        await trio.testing.wait_all_tasks_blocked()
        for frame_id in (1, 2):  # the second waits for its 20 ms, and goodbye behind it
            session.note_processed(1, frame_id)
            await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        nursery.start_soon(session.aclose)
        await trio.testing.wait_all_tasks_blocked()
        server.cut()
    assert trio.current_time() - began < 0.5
    assert server.dials == 1


async def test_link_close_during_an_outage_is_immediate(autojump_clock: trio.testing.MockClock) -> None:
    """There is nobody to say goodbye to."""
    server = HandServer()
    async with opened(server) as session:
        generation = await begin(session, server)
        server.refusal = ConnectFailed("refused")
        server.cut()
        await trio.sleep(5)
        began = trio.current_time()
        await session.aclose()
        assert trio.current_time() == began
        with pytest.raises(SeedanceError, match="closed"):
            await generation.receive()


async def test_link_hook_that_raises_is_logged_and_changes_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in somebody's counter must not cost an answer."""

    def broken(_: ReconnectDetails) -> None:
        raise LookupError("mine")

    server = HandServer()
    async with opened(server, on_reconnect=broken) as session:
        generation = await begin(session, server)
        with caplog.at_level(logging.INFO, "seedance_sdk"):
            server.cut()
            await server.again()
        await server.resume()
        await server.say(final(1, 1, ""))
        assert await rest_of(generation) == ""
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert "0.12 s" in caplog.records[0].getMessage()


async def test_link_closed_for_one_large_request_blames_no_neighbour(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A close with 1009 is about one request: kept streams go on, others are lost with their connection."""
    server = HandServer()
    async with opened(server) as session, trio.open_nursery() as nursery:
        kept = await begin(session, server, 1)
        unkept = await begin(session, server, 2, Durability.NONE)

        async def ask_too_much() -> None:
            with pytest.raises(RequestTooLarge):
                await session.submit(asked("x" * 1000), FOREVER)

        nursery.start_soon(ask_too_much)
        await server.expect(Submit)
        server.cut(1009)
        await server.again()
        resume = await server.resume(last_id=2)
        assert (resume.stream_id, resume.last_processed_id) == (1, 0)
        await server.say(delta(1, 1, "on", 0), final(1, 2, "on"))
        assert await rest_of(kept) == "on"
        with pytest.raises(ConnectionLost):
            await unkept.receive()
