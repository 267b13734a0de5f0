"""Tests of `seedance_server.http.intake`: a request is taken once, within every limit, or leaves nothing."""

import pytest
import trio

from seedance_server.config import Config
from seedance_server.errors import RequestRefused
from seedance_server.http.answer_id import AnswerId, Kind
from seedance_server.http.holds import Holds
from seedance_server.http.intake import take
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import ChatMessage, ErrorCode, Submit

ANSWER = AnswerId.of(Kind.CHAT, "local", "key")


def submit(index: int = 0, content: str = "Hi", **more: object) -> Submit:
    messages = (ChatMessage(role="user", content=content),)
    return Submit(sequence_id=index + 1, idempotency_key=ANSWER.key_of(index), messages=messages, **more)


async def keep(lock: trio.Lock, task_status: trio.TaskStatus[None]) -> None:
    """Keeps everybody else waiting for a while."""
    async with lock:
        task_status.started()
        await trio.sleep(1)


async def test_intake_takes_a_request_once(autojump_clock) -> None:
    """However often it is sent: one stream, counted once."""
    engine = ScriptedEngine()
    async with serve_in_memory(engine) as server:
        service = server.door.house.service
        async with Holds(server.registry).held("local", ANSWER, is_new=True) as hold:
            first = await take(service, hold.session, submit())
            again = await take(service, hold.session, submit())
            assert first.stream is not None
            assert again.stream is None
            assert again.record.stream_id == first.record.stream_id == 1
            assert server.admission.open_requests == 1
            await first.stream.over.wait()
            await trio.sleep(1)
        assert server.admission.open_requests == 0
        assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (submit(content="x" * 5000), ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        (submit(content=" "), ErrorCode.INVALID_REQUEST),
        (submit(model="other"), ErrorCode.MODEL_NOT_FOUND),
        (submit(content="x\ud800"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_intake_refuses_and_leaves_nothing(autojump_clock, request_: Submit, code: ErrorCode) -> None:
    """Not a count, not a row."""
    async with (
        serve_in_memory() as server,
        Holds(server.registry).held("local", ANSWER, is_new=True) as hold,
    ):
        with pytest.raises(RequestRefused) as refused:
            await take(server.door.house.service, hold.session, request_)
        assert refused.value.code is code
        assert server.admission.open_requests == 0


async def test_intake_over_a_limit_takes_only_what_it_knows(autojump_clock) -> None:
    """A request that is a stream already is answered again; a new one is told to come back."""
    config = Config(model_path="m", max_generations=1)
    async with serve_in_memory(ScriptedEngine(["x"] * 1000), config=config) as server:
        service = server.door.house.service
        async with Holds(server.registry).held("local", ANSWER, is_new=True) as hold:
            await take(service, hold.session, submit())
            assert (await take(service, hold.session, submit())).stream is None
            with pytest.raises(RequestRefused) as refused:
                await take(service, hold.session, submit(1))
            assert refused.value.code is ErrorCode.OVERLOADED
            assert refused.value.retry_after_ms


async def test_intake_is_too_late_after_the_deadline(autojump_clock) -> None:
    """Before it is written down nothing has begun; after that its stream ends with an error."""
    async with serve_in_memory(ScriptedEngine(["x"] * 1000)) as server:
        service = server.door.house.service
        async with Holds(server.registry).held("local", ANSWER, is_new=True) as hold:
            async with trio.open_nursery() as nursery:
                await nursery.start(keep, hold.session.submitting)
                with pytest.raises(RequestRefused) as refused:
                    await take(service, hold.session, submit(deadline_ms=500))
            assert refused.value.code is ErrorCode.DEADLINE_EXCEEDED
            assert server.admission.open_requests == 0
