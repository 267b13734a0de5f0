"""`nox -s bench -- heartbeat`: what it costs to know that idle connections are alive.

Servers that differ only in their heartbeat run at once, with as many idle connections each: lazy, as
`seedance-server` is; a timer of 10 s for each connection, as is usual; and one that never asks. Their CPU
time is read from the system. Then all of them stream at full speed, and connections that were closed although
their client lives are counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio

from ending import run_to_end
from figures import ask
from idle_clients import IdleClients
from load import RESULTS, machine
from seedance_sdk import AsyncSeedanceClient
from server_process import RunningServer, ServerFailed, running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["main"]

HERE = Path(__file__).parent
SETTLE_S = 3.0
KINDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "lazy": ("scripted_server.py", ()),
    "ticker": ("ticking_server.py", ()),
    "none": ("scripted_server.py", ("--heartbeat=86400",)),
}
"""Program and flags of each server."""
DESCRIPTORS = 3
"""Sockets of one idle connection in this process: one for each server."""


def run(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    """Start the servers, take both measurements, stop them; return the whole record."""
    _raise_descriptor_limit(DESCRIPTORS * options.connections + 500)
    record: dict[str, Any] = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "connections": options.connections,
        "idle_s": options.seconds,
        "load_s": options.load_seconds,
        "streams": options.streams,
    }
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(name, options, report, stack)) for name in KINDS]
        report(f"{options.connections} idle connections to each of {len(servers)} servers …")
        clients = stack.enter_context(IdleClients([server.url for server in servers], options.connections))
        time.sleep(SETTLE_S)
        report(f"idle for {options.seconds:g} s …")
        idle = _measured(servers, clients, partial(time.sleep, options.seconds))
        report(f"{options.streams} streams on each for {options.load_seconds:g} s …")
        load = partial(trio.run, _stream, servers, options.streams, options.load_seconds)
        loaded = _measured(servers, clients, load)
    record["servers"] = {
        name: {
            "cpu_s_per_minute": round(idle["cpu_s"][index] * 60 / idle["wall_s"], 3),
            "pings_per_minute": round(idle["pings"][index] * 60 / idle["wall_s"]),
            "closed_idle": idle["lost"][index],
            "closed_under_load": loaded["lost"][index],
            "pings_under_load": loaded["pings"][index],
            "cpu_under_load": round(loaded["cpu_s"][index] / loaded["wall_s"], 3),
            "tokens_under_load": loaded["did"][index],
        }
        for index, name in enumerate(KINDS)
    }
    return record


def _server(name: str, options: argparse.Namespace, report: Callable[[str], None], stack: ExitStack) -> Any:
    program, more = KINDS[name]
    directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.results))
    room = str(options.connections + 100)
    flags = [f"--step-ms={options.step_ms}", "--port=0", f"--journal={directory}/journal.db", *more]
    flags += ["--max-conns", room, "--max-unauthenticated", room, "--log-level", "warning"]
    return running_server(flags, report, program=(str(HERE / program),))


def _raise_descriptor_limit(wanted: int) -> None:
    """Every connection takes a descriptor here; a process may raise its own limit up to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            raise ServerFailed(f"{wanted} descriptors are needed, {hard} allowed: fewer --connections")


def _measured(
    servers: Sequence[RunningServer], clients: IdleClients, work: Callable[[], Any]
) -> dict[str, Any]:
    processes = [psutil.Process(server.process.pid) for server in servers]
    before, counted, started_s = list(map(_cpu_s, processes)), clients.counts(), time.monotonic()
    did = work()
    wall_s = time.monotonic() - started_s
    after, counts = list(map(_cpu_s, processes)), clients.counts()

    def grown(name: str) -> list[int]:
        return [int(str(new[name])) - int(str(old[name])) for new, old in zip(counts, counted, strict=True)]

    return {
        "wall_s": wall_s,
        "cpu_s": [later - earlier for later, earlier in zip(after, before, strict=True)],
        "pings": grown("pings"),
        "lost": grown("lost"),
        "did": did,
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _stream(servers: Sequence[RunningServer], streams: int, seconds: float) -> list[int]:
    """So many streams at a time on each server, one after the other; returns the tokens that came."""
    tokens = [0] * len(servers)

    async def read(index: int, client: AsyncSeedanceClient) -> None:
        while True:
            answer = await ask(client, {"prompt": "Count.", "max_tokens": 50})
            tokens[index] += answer.tokens

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for index, server in enumerate(servers):
                client = AsyncSeedanceClient(server.url)
                await nursery.start(_kept, client)
                for _ in range(streams):
                    nursery.start_soon(read, index, client)
    return tokens


async def _kept(client: AsyncSeedanceClient, task_status: trio.TaskStatus[None]) -> None:
    async with client:
        task_status.started()
        await trio.sleep_forever()


def table(record: dict[str, Any]) -> str:
    """Lay the figures out as text."""
    rows = [f"{record['connections']} idle connections, {record['idle_s']:g} s"]
    rows.append(
        f"{'heartbeat':10}{'CPU s a minute':>16}{'pings a minute':>16}{'closed':>8}   under load: "
        f"{'closed':>8}{'pings':>8}{'CPUs':>8}{'tokens/s':>10}"
    )
    for name, figures in record["servers"].items():
        rows.append(
            f"{name:10}{figures['cpu_s_per_minute']:16.2f}{figures['pings_per_minute']:16}"
            f"{figures['closed_idle']:8}{'':15}{figures['closed_under_load']:8}"
            f"{figures['pings_under_load']:8}{figures['cpu_under_load']:8.2f}"
            f"{figures['tokens_under_load'] / record['load_s']:10.0f}"
        )
    servers = record["servers"]
    base = servers["none"]["cpu_s_per_minute"]
    lazy, ticker = (servers[name]["cpu_s_per_minute"] - base for name in ("lazy", "ticker"))
    rows.append(f"for the heartbeat alone: lazy {lazy:.2f} s, ticker {ticker:.2f} s of CPU a minute")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if no living client was closed by the lazy heartbeat."""
    parser = argparse.ArgumentParser(prog="nox -s bench -- heartbeat", description="Signs of life, lazily.")
    parser.add_argument("--connections", type=int, default=2000, help="idle ones to each server (2000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="idle time that is measured (60)")
    parser.add_argument("--load-seconds", type=float, default=50.0, help="time under load (50)")
    parser.add_argument("--streams", type=int, default=32, help="streams at once on each server then (32)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of the engine's step (20)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go")
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    options.results.mkdir(parents=True, exist_ok=True)
    report = partial(print, file=sys.stderr, flush=True)
    record, status = run_to_end("bench", lambda: run(options, report))
    if record is None:
        return status
    written = options.results / f"heartbeat-{record['taken_at'].replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))
    print(f"\nall figures in {written}")
    lazy = record["servers"]["lazy"]
    return 1 if lazy["closed_idle"] or lazy["closed_under_load"] else 0


if __name__ == "__main__":
    sys.exit(main())
