"""Tests of `seedance_sdk.report_sender`, where the client's reports do not come by."""

import pytest
import trio

from seedance_sdk.errors import ConnectionLost, InvalidRequest, Overloaded
from seedance_sdk.outbox import Outbox
from seedance_sdk.report_sender import ReportSender
from seedance_wire.client_session import ClientSession
from seedance_wire.messages import Hello, UserEvent

CLICK = UserEvent(timestamp=1, user_id=1, action="click")


class Steps(Outbox):
    """Takes each step at once."""

    def add(self, step) -> None:
        step()


def sender(room: int = 8) -> ReportSender:
    core = ClientSession("seedance.v1", hello=Hello(), max_unconfirmed=room)
    return ReportSender(core, Steps(core, 0.02, 0.1), want=lambda: None)


async def test_batch_that_fits_no_message_is_an_error() -> None:
    """And waits for nothing."""
    reports = sender()
    large = UserEvent(timestamp=1, user_id=1, action="a", payload=bytes(65_536))
    with pytest.raises(InvalidRequest):
        await reports.send([large] * 5)
    assert reports.waiting == 0


async def test_batch_finds_no_room_in_a_full_backlog() -> None:
    """It is the same as a server without room: to be tried again."""
    reports = sender(room=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.send, [CLICK])
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await reports.send([CLICK])
        assert reports.waiting == 1
        nursery.cancel_scope.cancel()
    assert reports.waiting == 0


async def test_batch_ends_with_its_session() -> None:
    """With the reason."""
    reports = sender()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await trio.testing.wait_all_tasks_blocked()
                reports.fail(ConnectionLost("gone"))

            nursery.start_soon(end)
            with pytest.raises(ConnectionLost):
                await reports.send([CLICK])
