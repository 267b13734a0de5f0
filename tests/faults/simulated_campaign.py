"""The whole stack in simulated time: real client and server, memory streams, a network that never rests.

Everything between the application and the engine is the product: SDK, WebSocket, guard, front door, session,
journal. What is simulated is the network, the engine's text and time itself, so that thousands of faults cost
a minute. Servers are killed as well: their journal refuses everything from that moment on, and the next life
finds what was committed and no more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count

import trio
import trio.testing
from attrs import Factory, define, field

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.limits import Limits
from seedance_sdk.transport import WebSocketConnector
from seedance_server.config import Config
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.journal.memory import MemoryJournal
from seedance_server.testing import InMemoryServer, ScriptedEngine, serve_in_memory
from tests.faults.fault_proxy import FaultProxy, Harm, HarmKind, Plan
from tests.faults.history import JournaledFrame, check_histories
from tests.faults.journal_file import StreamName, journaled_records
from tests.faults.readers import NotingConnector, Request, StoryReader
from tests.faults.tally import Tally

__all__ = ["MortalJournal", "World", "histories", "simulated_campaign", "story"]

READERS = 4
PATIENCE_S = 86_400.0
"""Of a reader, in simulated time: most connections are cut before they were of use."""
_CONFIG = Config(model_path="m", max_attempts=1_000_000)
"""Servers die of the campaign, never of a stream."""
_SYLLABLES = ("ta ", "né", "日本", "🚀", " word", "\n", "größe ", "x", "— ", "  ")
_ENDINGS = (HarmKind.CUT, HarmKind.CUT, HarmKind.CUT, HarmKind.HALF_CLOSE)


_MEAN_BYTES = 700
"""Until a connection is cut: an upgrade takes some 400 bytes each way, a story a few thousand."""


class MortalJournal(MemoryJournal):
    """A journal that can be taken away from a server in the middle of whatever it does."""

    def die(self) -> None:
        """Refuses everything until it is run again."""
        self._is_open = False


def story(number: int, pieces: int) -> list[str]:
    """A text of so many pieces, the same for the same number."""
    dice = random.Random(number)
    return [f"{number}.{place}{dice.choice(_SYLLABLES)}" for place in range(pieces)]


def _script(request: GenerationRequest) -> list[str]:
    number, pieces = "".join(map(chr, request.prompt_ids)).split()[1:]
    return story(int(number), int(pieces))


@define
class World:
    """A server that may be down, and a network before it.

    Attributes:
        journal: Outlives the server.
        proxy: The network.
        kills: Lives ended.
    """

    journal: MortalJournal = field(factory=MortalJournal)
    server: InMemoryServer | None = None
    kills: int = 0
    proxy: FaultProxy = field(init=False)
    _life: trio.CancelScope = Factory(trio.CancelScope)
    _up: trio.Event = Factory(trio.Event)

    def __attrs_post_init__(self) -> None:
        self.proxy = FaultProxy(self._reach)

    async def _reach(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self.server is None:
            raise ConnectionRefusedError("the server is down")
        return self.server.connect()

    async def run(
        self, *, down_s: float = 1.0, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs one life after the other until cancelled."""
        started = False
        while True:
            with trio.CancelScope() as self._life:
                engine = ScriptedEngine(_script)
                async with serve_in_memory(
                    engine, config=_CONFIG, journal=self.journal, step_s=0.002
                ) as self.server:
                    self._up.set()
                    if not started:
                        task_status.started()
                        started = True
                    await trio.sleep_forever()
            self.server = None
            self._up = trio.Event()
            await trio.sleep(down_s)

    def kill(self) -> None:
        """Ends this life; what was not committed never was."""
        if self.server is not None:
            self.kills += 1
            self.journal.die()
            self.server = None
            self._life.cancel()

    async def wait_up(self) -> None:
        """Returns when there is a server."""
        await self._up.wait()

    async def open_client_stream(self, nursery: trio.Nursery, _endpoint: Endpoint) -> trio.abc.Stream:
        """A client's connection through the network."""
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(self.proxy.handle, theirs)
        await trio.lowlevel.checkpoint()
        return ours


def _bad_luck(dice: random.Random) -> Plan:
    """What happens to one connection: mostly something."""
    fate = dice.random()
    if fate < 0.15:
        return Plan(refused=True)
    upward = dice.random() < 0.3
    mean_bytes = _MEAN_BYTES / 2 if upward else _MEAN_BYTES
    harms = [Harm(dice.choice(_ENDINGS), round(dice.expovariate(1 / mean_bytes)))]
    if dice.random() < 0.3:
        slow_after = round(dice.random() * harms[0].after_bytes)
        harms.insert(0, Harm(HarmKind.DELAY, slow_after, dice.random() * 0.05))
    return Plan(up=tuple(harms)) if upward else Plan(down=tuple(harms))


async def _kill_now_and_then(world: World, dice: random.Random) -> None:
    while True:
        await trio.sleep(dice.expovariate(1 / 20))
        await world.wait_up()
        world.kill()


async def _run(faults: int, seed: int, subprotocol: str, report: Callable[[str], None]) -> Tally:
    dice = random.Random(seed)
    world = World()
    # A client's first connection is let be: one that can't be made is told at once, by design.
    world.proxy.plan = lambda number: _bad_luck(dice) if number else Plan()
    numbers = count(1)
    enough = trio.Event()
    readers: list[StoryReader] = []

    def next_request() -> Request:
        number, pieces = next(numbers), dice.randint(0, 60)
        options = {"prompt": f"story {number} {pieces}", "timeout": PATIENCE_S}
        return Request(options, "".join(story(number, pieces)))

    async with trio.open_nursery() as nursery:
        await nursery.start(world.run)
        connector = WebSocketConnector(open_stream=partial(world.open_client_stream, nursery))
        noting = NotingConnector(connector, lambda: [reader.note_connected() for reader in readers] and None)
        async with AsyncSeedanceClient(
            "ws://simulated/v1/chat",
            limits=Limits(reconnect_timeout_s=PATIENCE_S, circuit_open_max_s=1.0),
            connector=noting,
            clock=trio.current_time,
            dice=dice.random,
            subprotocol=subprotocol,
        ) as client:
            readers += [StoryReader(client, next_request, trio.current_time) for _ in range(READERS)]
            nursery.start_soon(_kill_now_and_then, world, dice)
            async with trio.open_nursery() as reading:
                for reader in readers:
                    reading.start_soon(reader.read_until, enough)
                while world.proxy.faults + world.kills < faults:
                    await trio.sleep(1.0)
                    report(f"{world.proxy.faults + world.kills} faults")
                world.proxy.plan = lambda _number: Plan()  # the faults stop: everything must end
                enough.set()
        nursery.cancel_scope.cancel()
    answers = {answer.name: answer.record for reader in readers for answer in reader.answers}
    return Tally(
        name=f"simulated time, {subprotocol}",
        faults=world.proxy.faults + world.kills,
        kills=world.kills,
        streams=len(answers),
        verdict=check_histories(answers, histories(world.journal)),
        wrong=tuple(line for reader in readers for line in reader.wrong),
    )


def histories(journal: MemoryJournal) -> dict[StreamName, list[JournaledFrame]]:
    """What a journal in memory holds, stream by stream."""
    return {name: journaled_records(held.frames) for name, held in journal._shelf.streams.items()}


def simulated_campaign(
    faults: int,
    *,
    seed: int = 0,
    subprotocol: str = "seedance.v1",
    report: Callable[[str], None] = lambda _line: None,
) -> Tally:
    """Runs the stack until so many faults have happened, then lets everything end.

    Args:
        faults: Connections harmed and servers killed, together.
        seed: Of every choice that is made here.
        subprotocol: Which encoding.
        report: Told how many there have been.
    """
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_run, faults, seed, subprotocol, report, clock=clock)
