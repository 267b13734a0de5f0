"""`nox -s bench -- client`: what a token costs the process of the application, here and in a client of SSE.

Servers in processes of their own send made-up answers, a step of all streams at a time: ours with an engine
that only counts, and one that speaks as OpenAI-compatible servers do. What is counted is the processor time
of this process alone, in turns. The client of SSE is the one that the comparison of engines asks its peers
with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import trio

from ending import run_to_end
from engine.sse_client import stream_completion
from engine.workload import Request
from figures import Answer, ask
from load import RESULTS, machine
from seedance_sdk import AsyncSeedanceClient
from server_process import ServerFailed, running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["main", "table"]

HERE = Path(__file__).parent
KINDS = {"sdk": "the SDK, seedance.v1", "sse": "a client of SSE"}
Load = Callable[[int, int], Awaitable[tuple[list[Answer], float]]]
"""Reads so many streams of so many tokens at once; also returns the processor time that took, in seconds."""


def _of_sdk(url: str) -> Load:
    """On a connection that is open already, as an application keeps it."""

    async def load(streams: int, tokens: int) -> tuple[list[Answer], float]:
        answers: list[Answer] = []

        async def read(client: AsyncSeedanceClient) -> None:
            answers.append(await ask(client, {"prompt": "Count.", "max_tokens": tokens}))

        async with AsyncSeedanceClient(url) as client:
            await client.complete(prompt="Count.", max_tokens=1)
            started_s = time.process_time()
            async with trio.open_nursery() as nursery:
                for _ in range(streams):
                    nursery.start_soon(read, client)
            return answers, time.process_time() - started_s

    return load


def _of_sse(port: int) -> Load:
    """With a connection for each stream, as such clients do it."""

    async def load(streams: int, tokens: int) -> tuple[list[Answer], float]:
        answers: list[Answer] = []

        async def read() -> None:
            answers.append(await stream_completion(port, {}, Request("Count.", tokens)))

        started_s = time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(streams):
                nursery.start_soon(read)
        return answers, time.process_time() - started_s

    return load


@contextmanager
def _sse_source(step_ms: float) -> Iterator[int]:
    command = [sys.executable, str(HERE / "sse_source.py"), f"{step_ms:g}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip():
            raise ServerFailed("the source of server-sent events did not start")
        yield int(line)
    finally:
        process.kill()
        process.wait()


def _microseconds_a_token(load: Load, streams: int, tokens: int) -> float:
    """Processor time of this process over a whole level, its requests included."""
    answers, spent_s = trio.run(load, streams, tokens)
    short = [answer for answer in answers if answer.error is not None or answer.tokens != tokens]
    if short:
        raise ServerFailed(f"an answer of {short[0].tokens} tokens instead of {tokens}: {short[0].error}")
    return 1e6 * spent_s / (streams * tokens)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start both servers, measure in turns; return the whole record."""
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    spent: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    with tempfile.TemporaryDirectory(dir=options.results) as directory:
        flags = [f"--step-ms={options.step_ms}", "--port=0", f"--journal={directory}/journal.db"]
        program = (str(HERE / "scripted_server.py"),)
        with (
            running_server([*flags, "--log-level=warning"], print, program=program) as server,
            _sse_source(options.step_ms) as port,
        ):
            loads = {"sdk": _of_sdk(server.url), "sse": _of_sse(port)}
            for load in loads.values():
                trio.run(load, options.streams, 4)  # what is set up once
            for _ in range(options.rounds):
                for kind, values in spent.items():
                    values.append(_microseconds_a_token(loads[kind], options.streams, options.tokens))
    return {
        "taken_at": taken_at,
        "machine": machine(),
        "streams": options.streams,
        "tokens": options.tokens,
        "step_ms": options.step_ms,
        "microseconds_a_token": spent,
    }


def table(record: dict[str, Any]) -> str:
    """Lay the figures out as text."""
    load = f"{record['streams']} streams of {record['tokens']} tokens, a step of {record['step_ms']:g} ms"
    rows = [
        f"{load}; µs of this process's processor time a token",
        f"{'':24}{'least':>8}{'median':>8}{'most':>8}",
    ]
    spent = record["microseconds_a_token"]
    for kind, values in spent.items():
        rows.append(f"{KINDS[kind]:24}{min(values):8.1f}{median(values):8.1f}{max(values):8.1f}")
    if set(spent) == set(KINDS):
        ratio = median(ours / theirs for ours, theirs in zip(spent["sdk"], spent["sse"], strict=True))
        rows.append(f"{'the SDK over SSE':24}{'':8}{ratio:8.2f}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0, or 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="nox -s bench -- client", description="What a token costs a client."
    )
    parser.add_argument("--streams", type=int, default=32, help="at once, over one connection (32)")
    parser.add_argument("--tokens", type=int, default=150, help="of each answer (150)")
    parser.add_argument("--step-ms", type=float, default=25.0, help="time of a step of all streams (25)")
    parser.add_argument("--rounds", type=int, default=5, help="of each client, in turns (5)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="which (both)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go")
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    options.results.mkdir(parents=True, exist_ok=True)
    record, status = run_to_end("bench", lambda: run(options))
    if record is None:
        return status
    written = options.results / f"client-{record['taken_at'].replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))
    print(f"\nall figures in {written}")
    return status


if __name__ == "__main__":
    sys.exit(main())
