"""A real server process is killed with SIGKILL again and again while clients read from it through a proxy.

Eight streams are live at each kill. The clients are ordinary SDK clients that are told nothing: they connect
again by themselves, and their streams go on. Afterwards the journal's file is read and every stream's record
is held against it, and against what an undisturbed server answered to the same request.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path

import trio
from attrs import evolve

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.limits import Limits
from seedance_sdk.transport import WebSocketConnector
from tests.faults.fault_proxy import FaultProxy, HarmKind, tcp_proxy
from tests.faults.history import check_histories
from tests.faults.journal_file import frames_of_file
from tests.faults.readers import NotingConnector, Request, StoryReader
from tests.faults.server_process import ServerProcess, server_process
from tests.faults.tally import Tally
from tests.tiny_models import build_tiny_model

__all__ = ["CLIENTS", "STREAMS_PER_CLIENT", "kill_campaign"]

CLIENTS = 2
STREAMS_PER_CLIENT = 4
MOST_TOKENS = 380
"""The tiny model's context is 512."""
PATIENCE_S = 180.0
"""For eight streams to go on after a restart; a machine with other work to do may need it."""
_PROMPTS = ("The quick brown fox", "A model reads", "Größe, naïve café", "numbers 0 1 2 3", "for token in")


def _requests() -> list[Request]:
    """Greedy and seeded requests, all different."""
    return [
        Request(
            {
                "prompt": prompt,
                "max_tokens": MOST_TOKENS,
                "ignore_eos": True,
                "temperature": 0.9 if number % 2 else 0.0,
                "seed": number,
                "timeout": PATIENCE_S,
            }
        )
        for number, prompt in enumerate(_PROMPTS * 2)
    ]


async def _undisturbed(server: ServerProcess) -> list[Request]:
    """The requests with what the server answers when nothing happens to it."""
    async with AsyncSeedanceClient(server.url) as client:
        return [
            evolve(request, expected=(await client.complete(**request.options)).text)
            for request in _requests()
        ]


@asynccontextmanager
async def _readers(
    proxy_port: int, requests: list[Request], pause_s: float, dice: random.Random
) -> AsyncIterator[list[StoryReader]]:
    """Two clients through the proxy, each with four readers."""
    upcoming = cycle(requests)
    url = f"ws://127.0.0.1:{proxy_port}/v1/chat"
    readers: list[StoryReader] = []

    def connected(own: list[StoryReader]) -> Callable[[], None]:
        return lambda: [reader.note_connected() for reader in own] and None

    async with AsyncExitStack() as stack:
        for _ in range(CLIENTS):
            own: list[StoryReader] = []
            client = await stack.enter_async_context(
                AsyncSeedanceClient(
                    url,
                    limits=Limits(reconnect_timeout_s=PATIENCE_S),
                    connector=NotingConnector(WebSocketConnector(), connected(own)),
                    dice=dice.random,
                )
            )
            own += [
                StoryReader(client, lambda: next(upcoming), time.monotonic, pause_s)
                for _ in range(STREAMS_PER_CLIENT)
            ]
            readers += own
        yield readers


async def _harm(
    server: ServerProcess,
    proxy: FaultProxy,
    readers: list[StoryReader],
    kills: int,
    dice: random.Random,
    report: Callable[[str], None],
) -> None:
    """Kills and restarts, each time when every stream is live and has gone on since the last time."""
    for number in range(kills):
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for reader in readers:
                    nursery.start_soon(reader.wait_for_pieces, dice.randint(1, 20))
        if number % 4 == 3:  # the network goes first, and the server while clients come back
            for reader in readers:
                reader.note_fault()
            proxy.cut_all(dice.choice([HarmKind.CUT, HarmKind.RESET]))
            await trio.sleep(dice.random() * 0.3)
        for reader in readers:
            reader.note_fault()
        await server.kill()
        server.start()
        await server.wait_ready()
        report(f"kill {number + 1} of {kills}")


async def kill_campaign(
    directory: Path, kills: int, *, seed: int = 0, report: Callable[[str], None] = lambda _line: None
) -> Tally:
    """Runs one server through ``kills`` deaths.

    Args:
        directory: For the model, the journal and the server's output.
        kills: How many.
        seed: Of every choice that is made here.
        report: Told after each kill.
    """
    dice = random.Random(seed)
    model = build_tiny_model("qwen2", directory / "model")
    journal = directory / "journal.db"
    flags = ("--kv-memory", "32MiB", "--threads", "1", "--log-level", "warning", "--dtype", "float32")
    flags += ("--max-attempts", "1000")  # it is we who end the processes
    enough = trio.Event()
    async with (
        server_process(directory, "--model-path", str(model), "--journal", str(journal), *flags) as server,
        trio.open_nursery() as nursery,
    ):
        requests = await _undisturbed(server)
        proxy = tcp_proxy(server.port)
        port: int = await nursery.start(proxy.serve)
        async with _readers(port, requests, 0.005, dice) as readers, trio.open_nursery() as reading:
            for reader in readers:
                reading.start_soon(reader.read_until, enough)
            await _harm(server, proxy, readers, kills, dice, report)
            enough.set()
        status = await server.stop()
        assert status == 0, server.log
        nursery.cancel_scope.cancel()
    answers = [answer for reader in readers for answer in reader.answers]
    recoveries = [recovery for reader in readers for recovery in reader.recoveries]
    return Tally(
        name="SIGKILL of a real process",
        faults=proxy.faults + server.kills,
        kills=server.kills,
        streams=len(answers),
        verdict=check_histories({answer.name: answer.record for answer in answers}, frames_of_file(journal)),
        wrong=tuple(line for reader in readers for line in reader.wrong),
        waits_s=[recovery.waited_s for recovery in recoveries],
        resumes_s=[recovery.resumed_s for recovery in recoveries],
    )
