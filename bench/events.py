"""What reported events weigh: plain protobuf, field-wise differences, those with zstd; and what each costs.

The stream is made from a seed: users of a shop in a browser, several at once. Each visits pages, scrolls,
moves, clicks, puts things into a basket and sometimes buys them; the payload says where and what, as JSON.
Pauses between events are exponential, user numbers are drawn once for each visit, and products follow a
power law. Nothing of it was measured on people: it stands for streams in which most of an event is like an
earlier one.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard

from seedance_wire import seedance_pb2 as pb
from seedance_wire.codec import make_codec
from seedance_wire.event_delta import pack_events, unpack_events
from seedance_wire.messages import Event, UserEvent

__all__ = ["main", "user_events"]

BATCHES = (1, 8, 64, 128, 256, 512)
AIM_RATIO, AIM_DIFFERENCE_US, AIM_ZSTD_US = 5.8, 12.0, 47.0
"""What is aimed at (S12)."""
_ACTIONS = ("scroll", "move", "click", "page_view", "add_to_basket", "purchase")
_WEIGHTS = (40, 30, 18, 9, 2, 1)
_PAGES = ("/", "/search", "/products", "/basket", "/account/orders")


def user_events(seed: int, visitors: int = 4) -> Iterator[UserEvent]:
    """An endless stream of what users of a shop do."""
    draw = random.Random(seed)
    now_ms = 1_735_689_600_000
    visits: list[dict[str, Any]] = []
    while True:
        while len(visits) < visitors:
            visits.append(
                {"user": draw.randrange(1, 2_000_000), "left": draw.randrange(20, 200), "page": "/"}
            )
        visit = draw.choice(visits)
        now_ms += round(draw.expovariate(1 / 120))
        (action,) = draw.choices(_ACTIONS, _WEIGHTS)
        if action == "page_view":
            product = min(round(draw.paretovariate(0.7)), 90_000)
            page = draw.choice(_PAGES)
            visit["page"] = f"{page}/{product}" if page == "/products" else page
        details: dict[str, Any] = {"page": visit["page"], "session_ms": 200_000 - visit["left"] * 900}
        if action in {"move", "click"}:
            details |= {"x": draw.randrange(1440), "y": draw.randrange(900)}
        elif action == "scroll":
            details["depth"] = draw.randrange(0, 100, 5)
        elif action in {"add_to_basket", "purchase"}:
            details |= {
                "quantity": draw.randrange(1, 4),
                "currency": "EUR",
                "cents": draw.randrange(199, 20_000),
            }
        details["agent"] = "web/7.2"
        yield UserEvent(
            timestamp=now_ms,
            user_id=visit["user"],
            action=action,
            payload=json.dumps(details, separators=(",", ":")).encode(),
        )
        visit["left"] -= 1
        if not visit["left"]:
            visits.remove(visit)


def _microseconds(work: Callable[[], object], repeats: int) -> float:
    best = min(_once(work) for _ in range(repeats))
    return best * 1e6


def _once(work: Callable[[], object]) -> float:
    started_s = time.thread_time()  # of the processor: others on the machine don't count
    work()
    return time.thread_time() - started_s


def _measure(events: Sequence[UserEvent], size: int, repeats: int) -> dict[str, Any]:
    batches = [events[start : start + size] for start in range(0, len(events) - size + 1, size)]
    count = size * len(batches)
    plain = [
        pb.Event(
            events=[
                pb.UserEvent(timestamp=e.timestamp, user_id=e.user_id, action=e.action, payload=e.payload)
                for e in batch
            ]
        ).SerializeToString()
        for batch in batches
    ]
    differences = [pack_events(batch, compress=False) for batch in batches]
    packed = [pack_events(batch) for batch in batches]
    codec = make_codec("seedance.v1")
    sent = [codec.encode((Event(sequence_id=9, batch_id=9, events=tuple(batch)),)) for batch in batches]

    def compress() -> None:
        for content in differences:
            zstandard.ZstdCompressor(level=3).compress(content)

    return {
        "batch": size,
        "plain_bytes": sum(map(len, plain)) / count,
        "difference_bytes": sum(map(len, differences)) / count,
        "packed_bytes": sum(map(len, packed)) / count,
        "message_bytes": sum(map(len, sent)) / count,
        "ratio": sum(map(len, plain)) / sum(map(len, packed)),
        "difference_us": _microseconds(lambda: [pack_events(b, compress=False) for b in batches], repeats)
        / count,
        "zstd_us": _microseconds(compress, repeats) / count,
        "unpack_us": _microseconds(lambda: [unpack_events(p, size) for p in packed], repeats) / count,
    }


def _reaches_aims(row: dict[str, Any]) -> bool:
    return bool(
        row["ratio"] >= AIM_RATIO
        and row["difference_us"] <= AIM_DIFFERENCE_US
        and row["zstd_us"] <= AIM_ZSTD_US
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every batch size and prints a table, and JSON if asked."""
    parser = argparse.ArgumentParser(prog="bench events", description=__doc__)
    parser.add_argument("--events", type=int, default=4096, help="events in the stream")
    parser.add_argument("--seed", type=int, default=1, help="of the stream")
    parser.add_argument("--repeats", type=int, default=5, help="the best of so many runs counts")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args(argv)
    events = list(islice(user_events(arguments.seed), arguments.events))
    print(
        f"{arguments.events} events of seed {arguments.seed}, Python {platform.python_version()}, one thread"
    )
    print(f"{'batch':>5} {'plain':>8} {'diff.':>8} {'+ zstd':>8} {'message':>8} {'ratio':>6}", end="")
    print(f" {'diff.':>9} {'zstd':>9} {'undo':>9}   bytes and µs of CPU are of one event")
    rows = [_measure(events, size, arguments.repeats) for size in BATCHES]
    for row in rows:
        sizes = "".join(
            f" {row[name]:6.1f} B" for name in ("plain_bytes", "difference_bytes", "packed_bytes")
        )
        times = "".join(f" {row[name]:6.2f} µs" for name in ("difference_us", "zstd_us", "unpack_us"))
        print(f"{row['batch']:5}{sizes} {row['message_bytes']:6.1f} B {row['ratio']:5.2f}x{times}")
    enough = [row["batch"] for row in rows if _reaches_aims(row)]
    aims = f"{AIM_RATIO}x smaller, {AIM_DIFFERENCE_US:g} µs, {AIM_ZSTD_US:g} µs"
    print(f"{aims}: {f'from batches of {enough[0]} on' if enough else 'not reached'}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    main()
