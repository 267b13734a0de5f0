"""A server that dies in the middle of an answer and comes up on the same journal, with a real model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from seedance_server.config import Config
from seedance_server.engine.progress import silent
from seedance_server.journal.sqlite import SqliteJournal
from seedance_server.served_model import ServedModel, load_served_model
from seedance_server.testing import InMemoryServer, ScriptedEngine, serve_in_memory
from seedance_wire.messages import (
    Accepted,
    Delta,
    Error,
    ErrorCode,
    Frame,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    Welcome,
)
from tests.e2e.test_resume import check_whole, digest_of, text_of
from tests.server.wire_client import wire_client
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True},
    "seeded": {"temperature": 1.0, "seed": -7, "max_tokens": 40, "ignore_eos": True},
    "penalised": {
        "temperature": 0.9,
        "seed": 11,
        "max_tokens": 40,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.2,
        "min_tokens": 30,
    },
    "form": {"temperature": 1.0, "seed": 5, "max_tokens": 18, "regex": "([a-z]{3} ){30}"},
    "logprobs": {"temperature": 0.0, "max_tokens": 20, "logprobs": True, "top_logprobs": 2},
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model("qwen2", tmp_path_factory.mktemp("qwen2"))


def load(model_path: Path) -> ServedModel:
    config = Config(model_path=str(model_path), threads=1, kv_memory_bytes=1 << 22)
    return load_served_model(config, silent)


def serve(
    journal: Path, model: ServedModel | None = None, **more: Any
) -> AbstractAsyncContextManager[InMemoryServer]:
    """A process's life on a journal: everything of it but the file is gone when the block is left.

    It may be so short that no frame comes of it, any number of times.
    """
    config = Config(model_path="m", max_attempts=1000)
    return serve_in_memory(model=model, journal=SqliteJournal(journal), step_s=0, config=config, **more)


async def whole(journal: Path, model: ServedModel, sampling: dict[str, Any]) -> list[Frame]:
    async with serve(journal, model) as server, wire_client(server.connect()) as client:
        await client.submit("Größe, café, 你好 and 🚀", sampling=sampling)
        await client.accepted()
        return await client.frames()


@pytest.mark.parametrize("name", REQUESTS)
async def test_answer_goes_on_after_each_restart_as_if_there_had_been_none(
    model_path: Path, tmp_path: Path, name: str
) -> None:
    """Killed every few frames, loaded anew: the same text, tokens, log probabilities and usage in fp32."""
    sampling = REQUESTS[name]
    expected = await whole(tmp_path / "whole.db", load(model_path), sampling)
    check_whole(expected, text_of(expected))
    journal = tmp_path / "journal.db"
    taken: list[Frame] = []
    welcome: Welcome | None = None
    restarts = 0
    with trio.fail_after(60):
        while not taken or isinstance(taken[-1], Delta):
            async with (
                serve(journal, load(model_path)) as server,
                wire_client(server.connect(), former=welcome) as client,
            ):
                if welcome is None:
                    await client.submit("Größe, café, 你好 and 🚀", sampling=sampling)
                    await client.accepted()
                else:
                    assert client.welcome.session_present
                    assert client.welcome.epoch > welcome.epoch
                    answer = await client.resume(1, taken, digest=digest_of(taken))
                    assert isinstance(answer, Resumed)
                welcome = client.welcome
                taken += await client.frames(restarts % 5 + 1)
            restarts += 1
    assert restarts > 5
    assert [content(frame) for frame in taken] == [content(frame) for frame in expected]


def content(frame: Frame) -> object:
    """All of a frame that must not change, whoever sends it."""
    if isinstance(frame, Delta):
        return frame.id, frame.offset, frame.text, frame.token_count, len(frame.logprobs)
    if isinstance(frame, Error):
        return frame.id, frame.offset, frame.code
    assert frame.final is not None
    final = frame.final
    return frame.id, final.finish_reason, final.usage.completion_tokens, final.digest, final.stop


async def cut(journal: Path, count: int, **more: Any) -> tuple[Welcome, list[Frame]]:
    """A process that takes a request and dies with its client's connection after so many frames."""
    engine = ScriptedEngine([f"{number} " for number in range(50)])
    async with (
        serve(journal, engine=engine, fingerprint=b"a" * 32) as server,
        wire_client(server.connect()) as client,
    ):
        await client.submit(**more)
        await client.accepted()
        return client.welcome, await client.frames(count)


async def test_another_model_goes_on_only_where_the_request_allows_it(tmp_path: Path) -> None:
    """What two models say isn't one answer; who allows it must still have the same text so far."""
    pieces = [f"{number} " for number in range(50)]
    cases: tuple[tuple[bool, Sequence[str], type], ...] = (
        (False, pieces, ResumeRejected),
        (True, pieces, Resumed),
        (True, ["other"] * 50, Resumed),
    )
    for number, (allowed, script, kind) in enumerate(cases):
        journal = tmp_path / f"{number}.db"
        welcome, taken = await cut(journal, 3, allow_fingerprint_change=allowed)
        async with (
            serve(journal, engine=ScriptedEngine(script), fingerprint=b"b" * 32) as server,
            wire_client(server.connect(), former=welcome) as client,
        ):
            answer = await client.resume(1, taken)
            assert isinstance(answer, kind)
            if isinstance(answer, ResumeRejected):
                assert answer.code is ResumeFailure.FINGERPRINT_MISMATCH
                continue
            frames = [*taken, *await client.frames()]
            if script == pieces:
                check_whole(frames, "".join(pieces))
            else:
                assert isinstance(frames[-1], Error)
                assert frames[-1].code is ErrorCode.FINGERPRINT_MISMATCH


async def test_request_sent_again_after_a_restart_finds_its_stream(tmp_path: Path) -> None:
    """The client never saw ACCEPTED: it asks again, and one generation answers."""
    journal = tmp_path / "journal.db"
    welcome, _ = await cut(journal, 2, idempotency_key=b"k" * 16)
    engine = ScriptedEngine([f"{number} " for number in range(50)])
    async with (
        serve(journal, engine=engine, fingerprint=b"a" * 32) as server,
        wire_client(server.connect(), former=welcome) as client,
    ):
        await client.submit(idempotency_key=b"k" * 16)
        accepted = await client.receive()
        assert isinstance(accepted, Accepted)
        assert (accepted.replayed, accepted.stream_id) == (True, 1)
        assert engine.requests == []  # nobody reads it yet
        await client.resume(1)
        check_whole(await client.frames(), "".join(f"{number} " for number in range(50)))
        assert len(engine.requests) == 1


async def test_conversation_goes_on_after_a_restart(model_path: Path, tmp_path: Path) -> None:
    """The next turn continues from exact ids that another process wrote, as it would have without."""

    async def turn(client: Any, text: str, **more: Any) -> str:
        await client.submit(text, sampling=REQUESTS["greedy"], **more)
        await client.accepted()
        return text_of(await client.frames())

    async with (
        serve(tmp_path / "one.db", load(model_path)) as server,
        wire_client(server.connect()) as client,
    ):
        expected = [await turn(client, "first"), await turn(client, "second", continues=1)]
    journal = tmp_path / "two.db"
    async with serve(journal, load(model_path)) as server, wire_client(server.connect()) as client:
        said = [await turn(client, "first")]
        welcome = client.welcome
    async with (
        serve(journal, load(model_path)) as server,
        wire_client(server.connect(), former=welcome) as client,
    ):
        said.append(await turn(client, "second", continues=1))
    assert said == expected
