"""What durability costs: frames a second and the wait for a commit, at 1, 8 and 32 streams.

Each stream appends a frame, waits until it is committed, computes for a moment (the time between two tokens)
and appends the next, as a generation does. `none` is the same without a journal, so the difference between
the two is the journal's. The file lies in the current directory unless told otherwise: a disk in memory would
flatter.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import trio
from attrs import evolve

from figures import percentile
from seedance_server.journal.interface import Journal
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import FrameRecord, NewSession, NewStream
from seedance_server.journal.sqlite import SqliteJournal

__all__ = ["main", "measure"]

STREAMS = (1, 8, 32)
PAYLOAD = b"x" * 60
"""About what a frame of one token takes on the wire."""


async def _stream(
    journal: Journal, name: str, frames: int, gap_s: float, durable: bool, waits_s: list[float]
) -> None:
    next_s = trio.current_time()
    for number in range(frames):
        frame = FrameRecord(
            id=number + 1, kind=1, offset=4 * number, size=4, payload=PAYLOAD, token_ids=(number,)
        )
        started_s = time.perf_counter()
        if durable:
            await journal.append(name, 1, 1, [frame])
        else:
            await trio.lowlevel.checkpoint()
        waits_s.append(time.perf_counter() - started_s)
        if gap_s:
            # All streams of a batch get their tokens at once, so all wake at the same moments.
            next_s += gap_s
            await trio.sleep_until(max(next_s, trio.current_time()))


async def measure(
    journal: Journal, streams: int, frames: int, gap_s: float, *, durable: bool
) -> dict[str, Any]:
    """Figures of one level, milliseconds and frames a second."""
    waits_s: list[float] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        for number in range(streams):
            name = f"session-{number}"
            await journal.create_session(NewSession(session_id=name, tenant="t", token_hash=bytes(32)))
            stream = NewStream(
                sequence_id=1,
                idempotency_key=name.encode(),
                fingerprint=b"",
                request=b"",
                model_fingerprint=b"",
                prompt_ids=tuple(range(500)),
                seed=1,
            )
            await journal.submit(name, 1, stream)
        before = journal.statistics()
        started_s = time.perf_counter()
        async with trio.open_nursery() as appenders:
            for number in range(streams):
                appenders.start_soon(_stream, journal, f"session-{number}", frames, gap_s, durable, waits_s)
        spent_s = time.perf_counter() - started_s
        after = journal.statistics()
        nursery.cancel_scope.cancel()
    commits = after.commits - before.commits
    return {
        "streams": streams,
        "gap_ms": gap_s * 1e3,
        "durability": "committed" if durable else "none",
        "frames_per_s": round(streams * frames / spent_s),
        "wait_ms": {f"p{p}": round(percentile(waits_s, p / 100) * 1e3, 3) for p in (50, 95, 99)},
        "frames_per_commit": round(streams * frames / commits, 1) if commits else None,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures every level and prints a table, and JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=300, help="frames of each stream")
    parser.add_argument("--gap-ms", type=float, default=20.0, help="time between two tokens")
    parser.add_argument("--interval-ms", type=float, default=None, help="how long a commit waits for company")
    parser.add_argument("--directory", type=Path, default=Path(), help="where the journal lies")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args(argv)
    limits = JournalLimits()
    if arguments.interval_ms is not None:
        limits = evolve(limits, commit_interval_s=arguments.interval_ms / 1e3)
    print(f"SQLite {apsw.sqlite_lib_version()}, {platform.platform()}, {limits.commit_interval_s * 1e3:g} ms")
    print(
        f"{'streams':>7} {'gap':>6} {'durability':>10} {'frames/s':>9}"
        f" {'P50':>7} {'P95':>7} {'P99':>7}  frames a commit"
    )
    levels = []
    for gap_s in (arguments.gap_ms / 1e3, 0.0):
        for streams in STREAMS:
            for durable in (False, True):
                with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                    path = Path(directory) / "journal.db"
                    journal = SqliteJournal(path, limits) if durable else MemoryJournal(limits)
                    level = trio.run(_measure, journal, streams, arguments.frames, gap_s, durable)
                levels.append(level)
                wait = level["wait_ms"]
                print(
                    f"{streams:7} {level['gap_ms']:4.0f}ms {level['durability']:>10}"
                    f" {level['frames_per_s']:9,} {wait['p50']:7.2f} {wait['p95']:7.2f} {wait['p99']:7.2f}"
                    f"  {level['frames_per_commit'] or ''}"
                )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(levels, indent=2) + "\n")


async def _measure(
    journal: Journal, streams: int, frames: int, gap_s: float, durable: bool
) -> dict[str, Any]:
    return await measure(journal, streams, frames, gap_s, durable=durable)


if __name__ == "__main__":
    main()
