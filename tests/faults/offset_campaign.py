"""One short exchange, cut at every single byte: first upwards, then downwards.

The exchange is a whole one: upgrade, greeting, request, answer, acknowledgements. Whatever byte is the last
one that passes, the client comes back by itself and the application reads the same text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio
import trio.testing

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.errors import ConnectionFailed
from seedance_sdk.limits import Limits
from seedance_sdk.transport import WebSocketConnector
from seedance_wire.codec import SUBPROTOCOLS
from tests.faults.fault_proxy import Harm, HarmKind, Plan
from tests.faults.history import ClientRecord, Verdict, check_histories
from tests.faults.journal_file import StreamName
from tests.faults.readers import Request, StoryReader
from tests.faults.simulated_campaign import World, histories, story
from tests.faults.tally import Tally

__all__ = ["exchange_size", "offset_campaign"]

PIECES = 3
_KINDS = (HarmKind.CUT, HarmKind.HALF_CLOSE)


async def _exchange(plan: Plan, subprotocol: str) -> tuple[World, StoryReader, tuple[int, int]]:
    """One request and its answer, with this plan for the first connection and none for the others."""
    world = World()
    world.proxy.plan = lambda number: plan if number == 0 else Plan()
    passed = (0, 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.run)
        connector = WebSocketConnector(open_stream=partial(world.open_client_stream, nursery))
        request = Request({"prompt": f"story 1 {PIECES}", "seed": 1}, "".join(story(1, PIECES)))
        async with AsyncSeedanceClient(
            "ws://simulated/v1/chat",
            limits=Limits(reconnect_timeout_s=60.0),
            connector=connector,
            clock=trio.current_time,
            dice=lambda: 0.5,
            subprotocol=subprotocol,
        ) as client:
            reader = StoryReader(client, lambda: request, trio.current_time)
            try:
                await reader.read_one()
            except ConnectionFailed:  # the first connection never stood: that is told at once, by design
                await reader.read_one()
            first = next(iter(world.proxy.connections), None)
        if first is not None:
            passed = (first.up.passed, first.down.passed)
        nursery.cancel_scope.cancel()
    return world, reader, passed


def _simulate(plan: Plan, subprotocol: str) -> tuple[World, StoryReader, tuple[int, int]]:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_exchange, plan, subprotocol, clock=clock)


def exchange_size(subprotocol: str) -> tuple[int, int]:
    """Bytes of the undisturbed exchange up to the end of the connection, upwards and downwards."""
    return _simulate(Plan(), subprotocol)[2]


def offset_campaign(
    *,
    subprotocols: tuple[str, ...] = SUBPROTOCOLS,
    every: int = 1,
    report: Callable[[str], None] = lambda _line: None,
) -> Tally:
    """Cuts at each byte of the exchange.

    Args:
        subprotocols: Encodings to try.
        every: 1 for each byte, more to leave some out.
        report: Told what is being tried.
    """
    records: dict[StreamName, ClientRecord] = {}
    verdicts: list[Verdict] = []
    wrong: list[str] = []
    faults = 0
    for subprotocol in subprotocols:
        up, down = exchange_size(subprotocol)
        report(f"{subprotocol}: {up} bytes up, {down} bytes down")
        for size, upward in ((up, True), (down, False)):
            for offset in range(0, size + 1, every):
                for kind in _KINDS:
                    harms = (Harm(kind, offset),)
                    plan = Plan(up=harms) if upward else Plan(down=harms)
                    world, reader, _ = _simulate(plan, subprotocol)
                    faults += world.proxy.faults
                    where = f"{subprotocol}, {kind.value} after {offset} bytes {'up' if upward else 'down'}"
                    wrong += [f"{where}: {line}" for line in reader.wrong]
                    records = {answer.name: answer.record for answer in reader.answers}
                    verdicts.append(check_histories(records, histories(world.journal)))
    verdict = Verdict(
        streams=sum(each.streams for each in verdicts),
        pieces=sum(each.pieces for each in verdicts),
        text_bytes=sum(each.text_bytes for each in verdicts),
        findings=tuple(finding for each in verdicts for finding in each.findings),
    )
    return Tally(
        name="a cut at every byte",
        faults=faults,
        kills=0,
        streams=verdict.streams,
        verdict=verdict,
        wrong=wrong,
    )
