"""`nox -s bench -- loop`: the server's processor time for a token by thread, with the journal and without.

The server is a process of its own whose engine only counts (`scripted_server.py`), so what its threads use is
what serving takes beside the model: on a processor it is taken from the model's own time. The scheduler's
count of each thread is read before and after a load; in turns, so that a busy machine is fair to both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import trio

from ending import run_to_end
from figures import ask
from load import RESULTS, machine
from seedance_sdk import AsyncSeedanceClient
from server_process import running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["main"]

SERVER = Path(__file__).with_name("scripted_server.py")
THREADS = {
    "loop": "event loop",
    "seedance-journa": "journal",
    "seedance-decode": "decode",
    "client": "client",
}
"""Of the server, as the system names them (15 characters), but the last: the process that reads."""
STREAMS_PER_CONNECTION = 32
WARM_PIECES = 20


def run(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    """Start the server, load it in turns, stop it; return the whole record."""
    record: dict[str, Any] = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "step_ms": options.step_ms,
        "pieces": options.pieces,
        "levels": [],
    }
    with tempfile.TemporaryDirectory(dir=options.results) as directory:
        flags = [f"--step-ms={options.step_ms}", "--port=0", "--log-level=warning"]
        flags += [f"--journal={directory}/journal.db", *options.server_flag]
        with running_server(flags, report, program=(str(SERVER),)) as server:
            for streams in options.streams:
                trio.run(_load, server.url, streams, "committed", WARM_PIECES)
                for number in range(options.rounds):
                    for durability in ("committed", "none"):
                        report(f"{streams} streams, {durability}, round {number + 1} …")
                        before = thread_times(server.process.pid)
                        trio.run(_load, server.url, streams, durability, options.pieces)
                        spent = thread_times(server.process.pid)
                        spent.subtract(before)
                        record["levels"].append(_level(streams, durability, spent, streams * options.pieces))
    return record


def _level(streams: int, durability: str, spent_ns: Counter[str], tokens: int) -> dict[str, Any]:
    us = {THREADS[name]: round(spent_ns[name] / tokens / 1e3, 1) for name in THREADS}
    return {"streams": streams, "durability": durability, "us_a_token": us}


def thread_times(pid: int) -> Counter[str]:
    """Nanoseconds that each thread of a process, and this process, have run; Linux tells."""
    times = Counter({"client": time.process_time_ns()})
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name, spent = (task / "comm").read_text().strip(), (task / "schedstat").read_text()
        except OSError:
            continue  # it has ended
        times["loop" if task.name == str(pid) else name] += int(spent.split()[0])
    return times


async def _load(url: str, streams: int, durability: str, pieces: int) -> None:
    """So many streams at once, each of them once."""
    async with trio.open_nursery() as nursery:
        for first in range(0, streams, STREAMS_PER_CONNECTION):
            count = min(STREAMS_PER_CONNECTION, streams - first)
            nursery.start_soon(_connection, url, count, durability, pieces)


async def _connection(url: str, streams: int, durability: str, pieces: int) -> None:
    request = {"prompt": "Count.", "max_tokens": pieces, "durability": durability}
    async with AsyncSeedanceClient(url) as client, trio.open_nursery() as nursery:
        for _ in range(streams):
            nursery.start_soon(ask, client, request)


def table(record: dict[str, Any]) -> str:
    """Lay the figures out as text: the median of the rounds, the least and the most."""
    rows = [f"us of processor time a token, a step of {record['step_ms']:g} ms"]
    rows.append(f"{'streams':>7} {'durability':>10}" + "".join(f"{name:>22}" for name in THREADS.values()))
    levels: dict[tuple[int, str], list[dict[str, float]]] = {}
    for each in record["levels"]:
        levels.setdefault((each["streams"], each["durability"]), []).append(each["us_a_token"])
    for (streams, durability), same in levels.items():
        row = f"{streams:7} {durability:>10}"
        for name in THREADS.values():
            values = [each[name] for each in same]
            row += f"{f'{median(values):.0f} ({min(values):.0f}..{max(values):.0f})':>22}"
        rows.append(row)
    return "\n".join(rows)


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if the server and all answers ended well."""
    parser = argparse.ArgumentParser(
        prog="nox -s bench -- loop", description="The server's processor time for a token, by thread."
    )
    parser.add_argument("--streams", type=_counts, default=[32], help="levels, e.g. 8,32 (default 32)")
    parser.add_argument("--pieces", type=int, default=200, help="pieces of each answer (default 200)")
    parser.add_argument("--step-ms", type=float, default=25.0, help="time of a step (default 25)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns with and without the journal (default 3)"
    )
    parser.add_argument("--server-flag", action="append", default=[], help="passed on to the server")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    options.results.mkdir(parents=True, exist_ok=True)
    record, status = run_to_end(
        "bench", lambda: run(options, lambda line: print(line, file=sys.stderr, flush=True))
    )
    if record is None:
        return status
    written = options.results / f"loop-{record['taken_at'].replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))
    print(f"\nall figures in {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
