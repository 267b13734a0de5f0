"""Tests of `seedance_sdk.reports`: a client's reports, through a scripted server."""

import pytest
import trio

from seedance_sdk import AsyncSeedanceClient, Overloaded, ReportsFull, SeedanceClient, Unsupported
from seedance_sdk.limits import Limits
from seedance_sdk.reports import Reports
from seedance_sdk.script import Refusal
from seedance_sdk.testing import ScriptedServer
from seedance_wire.messages import ErrorCode, UserEvent


def client_of(server: ScriptedServer, **limits: float) -> AsyncSeedanceClient:
    return AsyncSeedanceClient(
        "ws://test/v1/chat",
        connector=server,
        limits=Limits(**limits),
        dice=lambda: 0.5,
        wall_clock=lambda: 1.5,
    )


def click(user_id: int = 0) -> UserEvent:
    return UserEvent(timestamp=1500, user_id=user_id, action="click", payload=b"x")


async def test_reports_go_in_one_batch_and_come_once(autojump_clock) -> None:
    """What is reported together travels together; the time is the client's clock unless given."""
    server = ScriptedServer()
    async with client_of(server) as client:
        for user_id in range(5):
            client.report("click", "x", user_id=user_id)
        began_s = trio.current_time()
        await client.flush_reports()
        assert trio.current_time() - began_s < 0.1
        client.report("later", timestamp_ms=7)
        await client.flush_reports()
    assert server.reports[:5] == [click(user_id) for user_id in range(5)]
    assert server.reports[5] == UserEvent(timestamp=7, user_id=0, action="later")


async def test_reports_are_sent_without_being_asked_for(autojump_clock) -> None:
    """After a moment for company."""
    server = ScriptedServer()
    async with client_of(server) as client:
        client.report("click", "x")
        await trio.sleep(0.5)
        assert server.reports == [click()]


async def test_client_that_is_left_sends_its_reports_first(autojump_clock) -> None:
    """Nothing that was taken is dropped in silence."""
    server = ScriptedServer()
    async with client_of(server) as client:
        client.report("click", "x")
    assert server.reports == [click()]


async def test_client_that_cannot_send_its_reports_says_so(autojump_clock, caplog) -> None:
    """Within its bound."""
    server = ScriptedServer()
    server.stop()
    began_s = trio.current_time()
    async with client_of(server) as client:
        client.report("click")
        client.report("click")
    assert trio.current_time() - began_s < 5
    assert "2 reports were not confirmed" in caplog.text


async def test_reports_survive_cuts_and_count_once(autojump_clock) -> None:
    """Cut at every moment of a batch's way."""
    server = ScriptedServer()
    async with client_of(server) as client, trio.open_nursery() as nursery:

        async def cut() -> None:
            while True:
                await trio.sleep(0.037)
                server.cut()

        nursery.start_soon(cut)
        for user_id in range(50):
            client.report("click", "x", user_id=user_id)
            await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert server.reports == [click(user_id) for user_id in range(50)]


async def test_reports_wait_for_a_server_that_is_down(autojump_clock) -> None:
    """For as long as it takes, in the order in which they were made."""
    server = ScriptedServer()
    server.stop()
    async with client_of(server, reconnect_timeout_s=5.0) as client:
        for user_id in range(3):
            client.report("click", "x", user_id=user_id)
            await trio.sleep(40)
        server.start()
        await client.flush_reports()
    assert server.reports == [click(user_id) for user_id in range(3)]


async def test_reports_that_find_no_room_are_sent_again(autojump_clock) -> None:
    """When the server said, and nothing meanwhile is lost."""
    server = ScriptedServer()
    server.refuse_reports = Refusal(ErrorCode.OVERLOADED, retryable=True, retry_after_ms=2000)
    async with client_of(server) as client:
        client.report("click", "x")
        await trio.sleep(1)
        server.refuse_reports = None
        await trio.sleep(0.9)
        assert server.reports == []
        await trio.sleep(1)
        assert server.reports == [click()]


async def test_reports_that_a_server_does_not_take_are_an_error(autojump_clock) -> None:
    """Told to whoever waits and to whoever reports next; streams are not touched."""
    server = ScriptedServer()
    server.refuse_reports = Refusal(ErrorCode.UNSUPPORTED)
    async with client_of(server) as client:
        client.report("click")
        with pytest.raises(Unsupported):
            await client.flush_reports()
        with pytest.raises(Unsupported):
            client.report("click")


@pytest.mark.parametrize("limits", [{"max_reports": 3}, {"max_report_bytes": 3 * 38}])
async def test_reports_are_bounded(autojump_clock, limits: dict[str, int]) -> None:
    """In number and bytes; who reports too much is told, and nothing is dropped for it."""
    sent: list[UserEvent] = []

    async def send(events: tuple[UserEvent, ...]) -> None:
        await trio.sleep(1)
        sent.extend(events)

    reports = Reports(Limits(**limits), send)
    for user_id in range(3):
        reports.add(click(user_id))
    with pytest.raises(ReportsFull):
        reports.add(click(3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        await reports.flush()
        nursery.cancel_scope.cancel()
    assert (sent, reports.waiting) == ([click(user_id) for user_id in range(3)], 0)
    reports.add(click(3))


async def test_batch_is_bounded(autojump_clock) -> None:
    """So that it fits the message of any server, or goes alone."""
    sizes: list[int] = []

    async def send(events: tuple[UserEvent, ...]) -> None:
        await trio.lowlevel.checkpoint()
        sizes.append(len(events))

    reports = Reports(Limits(), send)
    for size in (60_000, 10_000, 10_000, 65_536, *[1] * 600):
        reports.add(UserEvent(timestamp=1, user_id=1, action="a", payload=bytes(size)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        await reports.flush()
        nursery.cancel_scope.cancel()
    assert sizes == [1, 2, 1, 512, 88]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a" * 257,), ValueError),
        (("a", bytes(65_537)), ValueError),
        (("\ud800",), ValueError),
        ((b"a",), TypeError),
        (("a", 5), TypeError),
    ],
)
async def test_report_is_checked_on_the_spot(arguments: tuple[object, ...], error: type[Exception]) -> None:
    """Before it could spoil a batch."""
    async with client_of(ScriptedServer()) as client:
        with pytest.raises(error):
            client.report(*arguments)
        with pytest.raises(ValueError, match="32 bits"):
            client.report("a", user_id=2**31)
        with pytest.raises(TypeError):
            client.report("a", timestamp_ms=1.5)


def test_blocking_client_reports() -> None:
    """The same for plain threads."""
    server = ScriptedServer()
    with SeedanceClient("ws://test/v1/chat", connector=server, wall_clock=lambda: 1.5) as client:
        client.report("click", "x")
        client.flush_reports()
        assert server.reports == [click()]
        client.report("click", "x", user_id=1)
    assert server.reports == [click(), click(1)]


def test_no_room_here_is_no_refusal_of_the_servers() -> None:
    """The two can be told apart."""
    assert not issubclass(ReportsFull, Overloaded)
