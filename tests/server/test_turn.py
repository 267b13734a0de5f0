"""Tests of `seedance_server.turn`: over the real admission, without an engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from seedance_server.accounts import Accounts
from seedance_server.admission import Admission
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine_loop import EngineLoop
from seedance_server.errors import RequestRefused
from seedance_server.prepared import Prepared
from seedance_server.served_model import Capacity, ServedModel
from seedance_server.testing import InlineExecutor, ScriptedEncoder, ScriptedEngine
from seedance_server.turn import Turn
from seedance_wire.messages import ErrorCode, Phase, Status


def make_admission(**capacity: object) -> Admission:
    engine = ScriptedEngine()
    model = ServedModel(
        name="m",
        context_tokens=4096,
        vocab_size=0x110000,
        engine=engine,
        encoder=ScriptedEncoder(),
        fingerprint=bytes(32),
        capacity=Capacity(**capacity),
    )
    loop = EngineLoop(engine, InlineExecutor(), buffer_outputs=8, stall_timeout_s=60)
    return Admission(
        model,
        loop,
        accounts=Accounts(),
        max_generations=99,
        max_waiting=99,
        max_waiting_per_tenant=99,
        preprocess_workers=1,
    )


class Waiting:
    """A stream's side of a turn."""

    def __init__(self, admission: Admission, number: int = 1, **more: object) -> None:
        admission.enter("t")
        prepared = Prepared(prompt_ids=(7,), params=SamplingParams(seed=1), arrival_s=0, tenant="t")
        self.told: list[Status] = []
        self.until_s = float("inf")
        settings = {
            "has_begun": False,
            "timeout_s": 30.0,
            "is_resting": lambda: False,
            "tell": self.told.append,
        }
        self.turn = Turn(number, prepared, admission, **(settings | more))
        self.done = trio.Event()

    async def run(self, hold_s: float = 0.0) -> None:
        with self.turn.in_line(0):
            self.got = await self.turn.wait(lambda: self.until_s)
            if self.got:
                self.turn.note_started()
                await trio.sleep(hold_s)
        self.done.set()


async def test_turn_is_taken_at_once_where_there_is_room() -> None:
    """Without a checkpoint, and without a word."""
    waiting = Waiting(make_admission())
    with trio.CancelScope() as scope:
        scope.cancel()
        await waiting.run()
        raise AssertionError("sleeps, so it is cancelled there and not before")
    assert waiting.got
    assert waiting.told == []
    assert waiting.turn.has_begun


async def test_turn_is_waited_for_and_its_place_told_when_it_changes(autojump_clock) -> None:
    """At most once a second, and with a time once there is one to tell."""
    admission = make_admission(sequences=1)
    scopes = [trio.CancelScope() for _ in range(5)]
    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(hold, Waiting(admission), scope)
            await trio.testing.wait_all_tasks_blocked()
        waiting = Waiting(admission)
        nursery.start_soon(waiting.run)
        for scope in scopes:
            await trio.sleep(5)
            scope.cancel()
        await waiting.done.wait()
    assert [status.position for status in waiting.told] == [3, 2, 1, 0]
    assert {(status.stream_id, status.phase) for status in waiting.told} == {(1, Phase.QUEUED)}
    assert [status.estimated_wait_ms for status in waiting.told] == [None, None, 10_000, 5_000]
    assert admission.queue_statistics().granted == 0


async def test_turn_that_does_not_come_in_time_is_refused(autojump_clock) -> None:
    """With when to come back; who had a turn before waits as long as it takes."""
    admission = make_admission(sequences=1)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(hold, Waiting(admission))
        await trio.testing.wait_all_tasks_blocked()
        late, back = Waiting(admission), Waiting(admission, has_begun=True)
        nursery.start_soon(back.run)
        began_s = trio.current_time()
        with pytest.raises(RequestRefused) as caught:
            await late.run()
        assert caught.value.code is ErrorCode.OVERLOADED
        assert caught.value.retry_after_ms >= 1_000
        assert trio.current_time() - began_s == pytest.approx(30)
        await trio.sleep(1_000)
        assert not back.done.is_set()
        nursery.cancel_scope.cancel()
    assert admission.queue_statistics().waiting == admission.queue_statistics().granted == 0


async def hold(waiting: Waiting, scope: trio.CancelScope | None = None) -> None:
    """Takes a turn and never starts: as a request that the engine has not begun with."""
    with scope or trio.CancelScope(), waiting.turn.in_line(0):
        await waiting.turn.wait(lambda: waiting.until_s)
        await trio.sleep_forever()


@asynccontextmanager
async def behind_others() -> AsyncIterator[Waiting]:
    """A request that has waited for five seconds behind two that hold their turns."""
    admission = make_admission(sequences=1)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(hold, Waiting(admission))
        await trio.testing.wait_all_tasks_blocked()
        waiting = Waiting(admission)
        nursery.start_soon(waiting.run)
        await trio.sleep(5)
        yield waiting
        nursery.cancel_scope.cancel()


async def test_turn_is_given_up_when_it_is_not_wanted_any_more(autojump_clock) -> None:
    """By a time that came, or was moved."""
    async with behind_others() as waiting:
        waiting.until_s = float("-inf")
        waiting.turn.note_change()
        await waiting.done.wait()
        assert not waiting.got
        assert not waiting.turn.has_begun


async def test_new_reader_is_told_the_place_again(autojump_clock) -> None:
    """Who comes back to a stream that waits sees where it stands."""
    async with behind_others() as waiting:
        assert len(waiting.told) == 1
        waiting.turn.note_reader()
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.told == [waiting.told[0]] * 2
