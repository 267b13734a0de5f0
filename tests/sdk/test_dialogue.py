"""A conversation: what continues what, what counts as said, and what happens to a context that is gone."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import trio
import trio.testing

from seedance_sdk.client import AsyncSeedanceClient
from seedance_sdk.errors import (
    DeadlineExceeded,
    EngineFailed,
    FingerprintMismatch,
    InvalidRequest,
    Overloaded,
    StreamNotFound,
)
from seedance_sdk.testing import Answer, ErrorCode, Refusal, ScriptedServer


def said(server: ScriptedServer, number: int) -> list[str | None]:
    """What the request of this number told."""
    return [message.content for message in server.requests[number].messages or ()]


async def test_turn_tells_only_what_is_new() -> None:
    """The server has the rest, token by token."""
    server = ScriptedServer(*(Answer(text) for text in "abc"))
    async with AsyncSeedanceClient(connector=server) as client:
        conversation = client.conversation(system="s")
        for question in "123":
            await conversation.say(question)
    assert [said(server, number) for number in range(3)] == [["s", "1"], ["2"], ["3"]]
    assert [request.continues for request in server.requests] == [None, 1, 2]


async def test_conversation_goes_on_from_what_was_stored() -> None:
    """Its messages are all that another process needs; the first turn tells them."""
    server = ScriptedServer(Answer("a"), Answer("b"), Answer("c"))
    async with AsyncSeedanceClient(connector=server) as client:
        first = client.conversation(system="s")
        await first.say("1")
        second = client.conversation(messages=first.messages)
        await second.say("2")
        await second.say("3")
    assert said(server, 1) == ["s", "1", "a", "2"]
    assert (said(server, 2), server.requests[2].continues) == (["3"], 2)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.FINGERPRINT_MISMATCH])
async def test_context_that_the_server_refuses_is_told_again_and_said_so(
    code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that forgot the turns, or serves another model: counted and logged, never silent."""
    gone = Refusal(code, "no such stream", field="continues")
    server = ScriptedServer(Answer("a"), gone, Answer("b"), Answer("c"))
    async with AsyncSeedanceClient(connector=server) as client:
        conversation = client.conversation()
        await conversation.say("1")
        with caplog.at_level(logging.WARNING, "seedance_sdk"):
            assert (await conversation.say("2")).text == "b"
        assert conversation.resends == 1
        await conversation.say("3")
    assert "sent again from its beginning: no such stream" in caplog.text
    assert said(server, 2) == ["1", "a", "2"]
    assert (said(server, 3), server.requests[3].continues) == (["3"], 2)


async def test_context_that_is_gone_is_an_error_where_that_is_wanted() -> None:
    """Who must not pay for a conversation twice, or needs its exact tokens, is asked first."""
    server = ScriptedServer(Answer("a"), Refusal(ErrorCode.FINGERPRINT_MISMATCH, "another model"))
    async with AsyncSeedanceClient(connector=server) as client:
        conversation = client.conversation(when_lost="raise")
        await conversation.say("1")
        with pytest.raises(FingerprintMismatch):
            await conversation.say("2")
        server.restart(forget=True)
        with pytest.raises(StreamNotFound):
            await conversation.say("3")
        assert conversation.resends == 0


async def test_other_refusals_are_the_callers() -> None:
    """Only a context that is gone is told again; the turn that failed was not said."""
    server = ScriptedServer(Answer("a"), Refusal(ErrorCode.OVERLOADED, "full"), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        conversation = client.conversation()
        await conversation.say("1")
        with pytest.raises(Overloaded):
            await conversation.say("2")
        await conversation.say("3")
        assert [message["content"] for message in conversation.messages] == ["1", "a", "3", "b"]
    assert server.requests[2].continues == 1


@pytest.mark.parametrize("how", ["closed", "dropped", "failed"])
async def test_turn_whose_answer_did_not_end_was_not_said(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The next turn continues the answer before it."""
    failing = Answer("x", error=ErrorCode.ENGINE_FAILED) if how == "failed" else Answer("x", endless=True)
    server = ScriptedServer(Answer("a"), failing, Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        conversation = client.conversation()
        await conversation.say("1")
        stream: Any = await conversation.say("2", stream=True)
        assert (await stream.receive()).delta == "x"
        if how == "closed":
            await stream.aclose()
        elif how == "failed":
            with pytest.raises(EngineFailed):
                await stream.receive()
        else:
            del stream
            gc.collect()
            await trio.sleep(1)
            assert server.cancelled == [2]
        await conversation.say("3")
        assert [message["content"] for message in conversation.messages] == ["1", "a", "3", "b"]
    assert [request.continues for request in server.requests] == [None, 1, 1]


async def test_turn_that_was_cancelled_counts_as_far_as_it_came() -> None:
    """``cancel`` ends an answer in order: what was said was said."""
    server = ScriptedServer(Answer("a", endless=True), Answer("b"))
    async with AsyncSeedanceClient(connector=server) as client:
        conversation = client.conversation()
        stream = await conversation.say("1", stream=True)
        await stream.receive()
        stream.cancel()
        assert (await stream.collect()).finish_reason == "cancelled"
        await conversation.say("2")
        assert [message["content"] for message in conversation.messages] == ["1", "a", "2", "b"]
    assert server.requests[1].continues == 1


async def test_turns_come_one_after_the_other() -> None:
    """What an answer says is unknown until it has ended, so nothing can continue it."""
    server = ScriptedServer(Answer("a", endless=True), Answer("b", endless=True))
    async with AsyncSeedanceClient(connector=server) as client:
        conversation = client.conversation()
        stream = await conversation.say("1", stream=True)
        with pytest.raises(InvalidRequest, match="has not ended"):
            await conversation.say("2")
        assert conversation.messages == ()
        await stream.aclose()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.say, "2")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(InvalidRequest, match="has not ended"):
                await conversation.say("3")
            nursery.cancel_scope.cancel()


async def test_deadline_bounds_both_attempts_together(autojump_clock: trio.testing.MockClock) -> None:
    """A context that is gone buys no time."""
    gone = Refusal(ErrorCode.INVALID_REQUEST, "gone", field="continues")
    server = ScriptedServer(Answer("a"), gone, Answer("b", delay_s=60))
    async with AsyncSeedanceClient(connector=server, dice=lambda: 0.0) as client:
        conversation = client.conversation()
        await conversation.say("1")
        began = trio.current_time()

        async def restart_later() -> None:
            await trio.sleep(2.5)
            server.start()

        server.stop()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart_later)
            with pytest.raises(DeadlineExceeded):
                await conversation.say("2", deadline=5)
        assert len(server.requests) == 3
        assert trio.current_time() - began == pytest.approx(5)


async def test_conversation_refuses_what_it_cannot_mean() -> None:
    """Mistakes are found where they are made."""
    async with AsyncSeedanceClient(connector=ScriptedServer()) as client:
        options: dict[str, Any] = {"continues": 1}
        with pytest.raises(TypeError, match="knows itself"):
            client.conversation(**options)
        with pytest.raises(TypeError, match="knows itself"):
            await client.conversation().say("x", **options)
        misspelt: dict[str, Any] = {"heat": 1}
        with pytest.raises(TypeError, match="heat"):
            client.conversation(**misspelt)
        lost: Any = "forget"
        with pytest.raises(InvalidRequest, match="when_lost"):
            client.conversation(when_lost=lost)
