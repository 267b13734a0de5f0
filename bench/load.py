"""A small load generator: N streams at once against a server that it starts itself, then what they saw.

Closed loop: each of N streams asks, reads its answer to the end, and asks again, so N requests are in flight
at any time. That measures a server under N patient users, and not what happens when requests arrive faster
than they are answered. Prompts and seeds are the same in every run; no prompt occurs twice in one run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import trio
from attrs import define, field

from ending import run_to_end
from figures import Answer, ask, percentile
from seedance_sdk import AsyncSeedanceClient, SeedanceError
from server_process import demo_model, running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["Level", "load", "main", "summary"]

RESULTS = Path(__file__).parent / "results"
TOPICS = (
    "the sea",
    "a small garden",
    "an old clock",
    "winter",
    "a long journey",
    "bread",
    "the moon",
    "music",
)
# The SDK shares one connection among its streams, as applications do; the server allows 64 on one.
STREAMS_PER_CONNECTION = 32
# fmt: off
TABLE_HEADINGS = (
    "streams", "durability", "requests", "failed", "tok/s",
    "TTFT P50", "P95", "P99", "ITL P50", "P95", "P99", "max",
)
# fmt: on
SHARES = (0.50, 0.95, 0.99)


@define
class Level:
    """What was measured at one number of concurrent streams.

    Attributes:
        streams: Streams at once.
        durability: What the server did with a piece before it sent it.
        answers: One entry for each request, failed ones included.
        spent_s: From the first request to the end of the last answer.
    """

    streams: int
    durability: str
    answers: list[Answer] = field(factory=list)
    spent_s: float = math.nan


def prompts(streams: int) -> Iterator[str]:
    """Yield the prompts of one level without end; each begins differently: no cached prefix flatters."""
    number = 0
    while True:
        number += 1
        topic = TOPICS[number % len(TOPICS)]
        yield f"Part {streams}, chapter {number}. A short and lively essay about {topic}.\n\n"


async def load(url: str, streams: int, durability: str, requests: int, max_tokens: int) -> Level:
    """Keep `streams` requests in flight until each stream has asked `requests` times.

    A failed request is counted and its stream goes on with the next one.
    """
    level = Level(streams, durability)
    source = prompts(streams)

    async def one_stream(client: AsyncSeedanceClient) -> None:
        for _ in range(requests):
            request = {
                "prompt": next(source),
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "temperature": 0.8,
                "seed": 1,
                "durability": durability,
            }
            started_s = time.monotonic()
            try:
                level.answers.append(await ask(client, request))
            except SeedanceError as error:
                ended_s = time.monotonic()
                level.answers.append(Answer(started_s, ended_s, error=f"{type(error).__name__}: {error}"))

    async def one_connection(count: int) -> None:
        async with AsyncSeedanceClient(url) as client, trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(one_stream, client)

    started_s = time.monotonic()
    async with trio.open_nursery() as nursery:
        for first in range(0, streams, STREAMS_PER_CONNECTION):
            nursery.start_soon(one_connection, min(STREAMS_PER_CONNECTION, streams - first))
    level.spent_s = time.monotonic() - started_s
    return level


def summary(level: Level) -> dict[str, Any]:
    """Return the figures of one level, in milliseconds and tokens per second, ready for JSON."""
    good = [answer for answer in level.answers if answer.error is None]
    gaps = [gap for answer in good for gap in answer.gaps_s]
    firsts = [answer.first_token_s for answer in good]
    whole = [answer.ended_s - answer.started_s for answer in good]
    tokens = sum(answer.tokens for answer in good)
    failed = len(level.answers) - len(good)
    return {
        "streams": level.streams,
        "durability": level.durability,
        "requests": len(level.answers),
        "failed": failed,
        "error_rate": failed / len(level.answers),
        "errors": sorted({answer.error for answer in level.answers if answer.error}),
        "tokens": tokens,
        "seconds": round(level.spent_s, 3),
        "tokens_per_second": round(tokens / level.spent_s, 2),
        "ttft_ms": _percentiles(firsts),
        "itl_ms": _percentiles(gaps),
        "end_to_end_ms": _percentiles(whole),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    found: dict[str, float | None] = {"count": len(values)}
    for name, value in (
        *((f"p{share * 100:.0f}", percentile(values, share)) for share in SHARES),
        ("max", max(values, default=math.nan)),
    ):
        found[name] = None if math.isnan(value) else round(value * 1000, 2)
    return found


def table(levels: Sequence[dict[str, Any]]) -> str:
    """Lay the summaries out as text."""
    rows: list[Sequence[str]] = [TABLE_HEADINGS]
    for level in levels:
        times = [level["ttft_ms"][name] for name in ("p50", "p95", "p99")]
        times += [level["itl_ms"][name] for name in ("p50", "p95", "p99", "max")]
        counts = [str(level[name]) for name in ("streams", "durability", "requests", "failed")]
        rate = f"{level['tokens_per_second']:.1f}"
        rows.append([*counts, rate, *("-" if time is None else f"{time:.0f}" for time in times)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.rjust, row, widths)) for row in rows)
    return "\n".join(("times in ms, as the client saw them", *lines))


def machine() -> dict[str, Any]:
    """Describe what the figures were taken on: without it they mean nothing."""
    names = ("seedance-server", "seedance-sdk", "torch", "transformers", "trio")
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "",
    )
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError("numbers of streams, from 1, separated by commas")
    return counts


def _durabilities(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= {"committed", "none"}:
        raise argparse.ArgumentTypeError("committed, none, or both separated by a comma")
    return names


def cost_of_durability(levels: Sequence[dict[str, Any]]) -> list[str]:
    """Compare the levels that differ in durability alone: medians over all rounds, a line for each number."""
    lines = []
    for streams in sorted({level["streams"] for level in levels}):
        medians = {}
        for durability in ("committed", "none"):
            same = [each for each in levels if (each["streams"], each["durability"]) == (streams, durability)]
            if same:
                gaps = [each["itl_ms"]["p50"] for each in same]
                medians[durability] = (median(gaps), median(each["tokens_per_second"] for each in same))
        if len(medians) == 2:
            (gap, rate), (plain_gap, plain_rate) = medians["committed"], medians["none"]
            lines.append(
                f"{streams} streams, committed / none: ITL P50 {gap / plain_gap:.3f}, "
                f"tokens/s {rate / plain_rate:.3f}"
            )
    return lines


def run(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    """Start the server, take every level, stop the server, return the whole record."""
    path = options.model_path or demo_model()
    record: dict[str, Any] = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": Path(path).name,
        "server_flags": options.server_flag,
        "max_tokens": options.max_tokens,
        "requests_per_stream": options.requests,
        "machine": machine(),
        "levels": [],
    }
    flags = ["--model-path", path, "--port", "0", "--log-level", "warning", *options.server_flag]
    with running_server(flags, report) as server:
        record["start_seconds"] = round(server.start_s, 2)
        first, *_ = options.durability
        trio.run(load, server.url, 1, first, 1, 8)  # pays for what is set up lazily: not counted
        # Round by round, so that what the machine does meanwhile falls on all levels alike.
        for streams, durability in [*product(options.streams, options.durability)] * options.rounds:
            report(f"{streams} streams at once, {durability}, {options.requests} requests each …")
            level = trio.run(load, server.url, streams, durability, options.requests, options.max_tokens)
            record["levels"].append(summary(level))
        record["server_peak_memory_bytes"] = server.peak_memory_bytes()
        return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every request was answered, 1 if any failed or the server did."""
    parser = argparse.ArgumentParser(
        prog="nox -s bench --", description="Load a server, report what clients saw."
    )
    parser.add_argument("--model-path", help="directory, hub id or GGUF file (default: the demo model)")
    parser.add_argument(
        "--streams", type=_counts, default=[1, 4, 16], help="levels, e.g. 1,4,16 (the default)"
    )
    parser.add_argument(
        "--requests", type=int, default=3, help="requests each stream sends in turn (default 3)"
    )
    parser.add_argument(
        "--durability",
        type=_durabilities,
        default=["committed"],
        help="committed, none, or committed,none to compare them (default committed)",
    )
    parser.add_argument("--rounds", type=int, default=1, help="times through all levels (default 1)")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens of each answer (default 48)")
    parser.add_argument(
        "--server-flag", action="append", default=[], help="passed on, e.g. --server-flag=--threads=1"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="where the JSON goes (default bench/results)"
    )
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    record, status = run_to_end(
        "bench", lambda: run(options, lambda line: print(line, file=sys.stderr, flush=True))
    )
    if record is None:
        return status
    options.results.mkdir(parents=True, exist_ok=True)
    written = options.results / f"load-{record['taken_at'].replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(json.dumps(record, indent=2) + "\n")
    print(table(record["levels"]))
    print(*cost_of_durability(record["levels"]), sep="\n")
    peak_gb = record["server_peak_memory_bytes"] / 1e9
    print(f"\npeak memory of the server {peak_gb:.2f} GB; all figures in {written}")
    for level in record["levels"]:
        for failure in level["errors"]:
            print(f"{level['streams']} streams: {failure}")
    return 1 if any(level["failed"] for level in record["levels"]) else 0


if __name__ == "__main__":
    sys.exit(main())
