"""Nothing is left of what has ended: descriptors, threads and tasks, after cuts, drains and kills.

Rows are counted elsewhere (`tests/stateful`): this is what only a real process has.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio
from attrs import frozen

from seedance_sdk import AsyncSeedanceClient
from seedance_server.config import Config
from seedance_server.serve import serve
from seedance_server.served_model import ServedModel
from seedance_server.testing import ScriptedEncoder, ScriptedEngine
from tests.faults.server_process import ServerProcess, server_process
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

CYCLES = 2
PATIENCE_S = 30.0
"""Trio keeps an idle worker thread for ten seconds."""


@frozen
class Held:
    """What a process holds."""

    descriptors: int
    threads: int

    @classmethod
    def by(cls, process: psutil.Process) -> Held:
        with process.oneshot():
            return cls(process.num_fds(), process.num_threads())


async def settled(look: Callable[[], Held], most: Held | None = None) -> Held:
    """What is held once that has stood still for a second, and is no more than ``most``."""
    held = look()
    with trio.move_on_after(PATIENCE_S):
        while True:
            await trio.sleep(1)
            before, held = held, look()
            within = most is None or (held.descriptors <= most.descriptors and held.threads <= most.threads)
            if held == before and within:
                break
    return held


async def begin_streams(url: str, count: int) -> None:
    """Begins streams on a connection that is given up without a word, once each has some text."""
    with trio.CancelScope() as scope:
        async with AsyncSeedanceClient(url) as client:
            for _ in range(count):
                stream = await client.complete(
                    prompt="The quick", max_tokens=400, ignore_eos=True, stream=True
                )
                await anext(aiter(stream))
            scope.cancel()
            await trio.sleep_forever()


async def test_server_process_holds_no_more_after_cuts_and_kills(tmp_path: Path):
    """The same descriptors and threads when idle: after clients that vanish, in a life after kills."""
    model = build_tiny_model("qwen2", tmp_path / "model")
    flags = ("--model-path", str(model), "--kv-memory", "16MiB", "--threads", "1", "--orphan-grace", "0")
    async with server_process(tmp_path, *flags, "--journal", str(tmp_path / "journal.db")) as server:
        await begin_streams(server.url, 2)
        first = await settled(partial(looked, server))
        for _ in range(CYCLES):
            await begin_streams(server.url, 4)
        assert await settled(partial(looked, server), first) == first
        for _ in range(CYCLES):
            await begin_streams(server.url, 2)
            await server.kill()
            server.start()
            await server.wait_ready()
        await begin_streams(server.url, 2)
        assert await settled(partial(looked, server), first) == first
        assert await server.stop() == 0


def looked(server: ServerProcess) -> Held:
    return Held.by(psutil.Process(server.pid))


async def test_serve_leaves_nothing_in_its_process_when_it_was_drained(tmp_path: Path):
    """Tasks, descriptors and threads are those from before, though streams were under way at each end."""
    ours = psutil.Process()

    def tasks() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    async def live() -> None:
        engine = ScriptedEngine(["word "] * 100_000)
        model = ServedModel(
            name="scripted",
            context_tokens=4096,
            vocab_size=0x110000,
            engine=engine,
            encoder=ScriptedEncoder(),
            fingerprint=bytes(32),
        )
        config = Config(model_path="m", port=0, shutdown_timeout_s=0.2, journal_path=tmp_path / "journal.db")
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, config, lambda *_: model)
            await begin_streams(url, 3)
            signal.raise_signal(signal.SIGTERM)

    await live()
    before, tasks_before = await settled(partial(Held.by, ours)), tasks()
    for _ in range(CYCLES):
        await live()
        assert tasks() == tasks_before
    assert await settled(partial(Held.by, ours), before) == before
