"""How a crowd of clients comes back: attempts per second through an outage, on a virtual clock.

Clients with a running stream each lose their server at once. It is away, then accepts connections and closes
them for overload, then is well. Nothing of it takes real time, and the same seed gives the same picture.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import trio
import trio.testing
from attrs import define, field, frozen

from ending import run_to_end
from line_chart import Line, Plot, line_charts
from seedance_sdk import AsyncSeedanceClient, AsyncStream, Limits
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.testing import Answer, ScriptedServer
from seedance_sdk.transport import Transport

__all__ = ["Outage", "Result", "main", "run"]

BEFORE_S, AFTER_S = 10.0, 30.0
PIECE_S = 1.0
RESULTS = Path(__file__).parent / "results"


@frozen
class Outage:
    """What happens to the clients.

    Attributes:
        clients: How many there are.
        away_s: So long nobody can connect.
        busy_s: So long after that connections are closed for overload, with 1013, once they stand.
        seed: Of the jitter.
    """

    clients: int = 200
    away_s: float = 30.0
    busy_s: float = 30.0
    seed: int = 7


@define
class Result:
    """What was seen; times are seconds after the loss.

    Attributes:
        attempts_s: Each attempt to connect.
        resumed_s: For each client, when its stream went on.
        whole: How many streams came whole, each piece once.
    """

    attempts_s: list[float] = field(factory=list)
    resumed_s: list[float] = field(factory=list)
    whole: int = 0

    def per_second(self, until_s: float) -> list[int]:
        """Attempts in each second."""
        counts = Counter(int(at) for at in self.attempts_s)
        return [counts[second] for second in range(int(until_s))]


class _Server:
    """A scripted server that the outage happens to."""

    def __init__(self, result: Result) -> None:
        pieces = [f"{number} " for number in range(round((BEFORE_S + AFTER_S) / PIECE_S))]
        self.text = "".join(pieces)
        self.server = ScriptedServer(respond=lambda _request: Answer(*pieces, delay_s=PIECE_S))
        self._result = result
        self._began = float("inf")
        self._busy = False

    @asynccontextmanager
    async def __call__(self, endpoint: Endpoint, limits: Limits) -> AsyncIterator[Transport]:
        if trio.current_time() >= self._began:
            self._result.attempts_s.append(trio.current_time() - self._began)
        async with self.server(endpoint, limits) as transport:
            if self._busy:
                self.server.close(1013, "overloaded")
            yield transport

    async def play(self, outage: Outage) -> None:
        """The outage, from a while before it."""
        await trio.sleep(BEFORE_S)
        self._began = trio.current_time()
        self.server.stop()
        await trio.sleep(outage.away_s)
        self._busy = True
        self.server.start()
        await trio.sleep(outage.busy_s)
        self._busy = False

    def since_loss(self) -> float:
        """Seconds since the loss."""
        return trio.current_time() - self._began


async def _play(outage: Outage, result: Result) -> None:
    server = _Server(result)
    dice = random.Random(outage.seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.play, outage)
        for _ in range(outage.clients):
            nursery.start_soon(_use, server, random.Random(dice.random()), result)


async def _use(server: _Server, dice: random.Random, result: Result) -> None:
    limits = Limits(reconnect_timeout_s=600)
    async with AsyncSeedanceClient(connector=server, limits=limits, dice=dice.random) as client:
        stream = await client.complete(prompt="x", stream=True, timeout=600)
        async for _ in _watched(stream, server, result):
            pass
        result.whole += stream.text == server.text


async def _watched(stream: AsyncStream, server: _Server, result: Result) -> AsyncIterator[None]:
    was_away = False
    async for _ in stream:
        if stream.reconnects and not was_away:
            was_away = True
            result.resumed_s.append(server.since_loss())
        yield


def run(outage: Outage) -> Result:
    """Play an outage."""
    result = Result()
    trio.run(partial(_play, outage, result), clock=trio.testing.MockClock(autojump_threshold=0))
    return result


def _picture(outage: Outage, result: Result) -> str:
    until_s = outage.away_s + outage.busy_s + AFTER_S
    attempts = result.per_second(until_s)
    resumed = [(at, float(count)) for count, at in enumerate(sorted(result.resumed_s), 1)]
    well_s = outage.away_s + outage.busy_s
    return line_charts(
        [
            Plot(
                f"Attempts to connect per second, {outage.clients} clients: away {outage.away_s:g} s, "
                f"overloaded {outage.busy_s:g} s, then well",
                [Line("attempts", [(second, float(count)) for second, count in enumerate(attempts)])],
            ),
            Plot(
                f"Streams that go on again (the server is well from {well_s:g} s)",
                [Line("streams", [(0.0, 0.0), *resumed, (until_s - 1, float(len(resumed)))])],
                mark=(float(outage.clients), "all"),
            ),
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """Play an outage, write figures and picture, print what matters."""
    parser = argparse.ArgumentParser(prog="bench outage", description=__doc__)
    parser.add_argument(
        "--clients", type=int, default=Outage().clients, help="how many (default: %(default)s)"
    )
    parser.add_argument("--away", type=float, default=Outage().away_s, help="seconds that nobody can connect")
    parser.add_argument("--busy", type=float, default=Outage().busy_s, help="seconds of overload after that")
    parser.add_argument(
        "--seed", type=int, default=Outage().seed, help="of the jitter (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    outage = Outage(options.clients, options.away, options.busy, options.seed)
    result, status = run_to_end("bench outage", partial(run, outage))
    if result is not None:
        _report(outage, result)
        status = max(status, int(result.whole != outage.clients))
    return status


def _report(outage: Outage, result: Result) -> None:
    well_s = outage.away_s + outage.busy_s
    attempts = result.per_second(well_s + AFTER_S)
    summary = {
        "attempts": len(result.attempts_s),
        "attempts_per_client": len(result.attempts_s) / outage.clients,
        "most_in_the_first_second": attempts[0],
        "most_in_any_later_second": max(attempts[1:]),
        "streams_whole": result.whole,
        "first_back_s": min(result.resumed_s, default=0.0) - well_s,
        "last_back_s": max(result.resumed_s, default=0.0) - well_s,
    }
    for name, value in summary.items():
        print(f"{name.replace('_', ' '):28} {value:>10,.4g}")
    stamp = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    record = {
        "benchmark": "outage",
        "taken": stamp,
        "setting": {
            "clients": outage.clients,
            "away_s": outage.away_s,
            "busy_s": outage.busy_s,
            "seed": outage.seed,
        },
        "sdk": version("seedance-sdk"),
        "python": platform.python_version(),
        "summary": summary,
        "attempts_per_second": attempts,
        "resumed_s": [round(at, 3) for at in sorted(result.resumed_s)],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"outage-{stamp}.json").write_text(json.dumps(record, indent=1) + "\n")
    picture = RESULTS / f"outage-{stamp}.svg"
    picture.write_text(_picture(outage, result))
    print(f"written to {picture.relative_to(Path.cwd()) if picture.is_relative_to(Path.cwd()) else picture}")
