"""Shares of tenants of different weights under saturation, and what a polite user of the smallest one feels.

Three tenants with keys of their own, weights 3, 2 and 1, ask one server for more than it can give. First each
keeps many requests in flight: the tokens that each got are compared with its weight. Then the two large ones
go on while the smallest has a single request at a time, and at last it is alone: the difference is what the
others cost it. Tokens count when they arrive at the client.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from ending import run_to_end
from figures import milliseconds, percentile
from line_chart import Line, Plot, line_charts
from load import RESULTS, machine
from seedance_sdk import AsyncSeedanceClient, SeedanceError
from server_process import ServerFailed, demo_model, running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["Tenant", "main", "shares"]

WEIGHTS = {"gold": 3.0, "silver": 2.0, "bronze": 1.0}
SMALLEST = "bronze"
WARM_UP = 0.15
"""Part of a phase that isn't counted: until every tenant has filled its line."""
WINDOW_S = 5.0
"""Of the shares in the picture."""
TOLERANCE = 0.10


@define
class Tenant:
    """One tenant's client side, and what it saw in a phase.

    Attributes:
        name: Of the tenant.
        key: Its key.
        arrivals: When tokens came, and how many.
        firsts_s: Times to the first piece of text.
        gaps_s: Times between pieces.
        errors: What failed.
    """

    name: str
    key: str = field(repr=False)
    arrivals: list[tuple[float, int]] = field(factory=list)
    firsts_s: list[float] = field(factory=list)
    gaps_s: list[float] = field(factory=list)
    errors: list[str] = field(factory=list)

    def clear(self) -> None:
        """Forgets what it saw."""
        for seen in (self.arrivals, self.firsts_s, self.gaps_s):
            seen.clear()

    def tokens(self, from_s: float, to_s: float) -> int:
        """Tokens that came in a time."""
        return sum(count for at_s, count in self.arrivals if from_s <= at_s < to_s)


async def _ask_for_ever(client: AsyncSeedanceClient, tenant: Tenant, number: int, max_tokens: int) -> None:
    turn = 0
    while True:
        turn += 1
        prompt = f"{tenant.name}, part {number}, chapter {turn}. A short and lively essay about the sea.\n\n"
        started_s = last_s = time.monotonic()
        try:
            async with await client.complete(
                prompt=prompt,
                max_tokens=max_tokens,
                ignore_eos=True,
                seed=1,
                on_disconnect="cancel",  # a phase ends with a cut, and leaves nothing to the next one
                stream=True,
            ) as stream:
                async for chunk in stream:
                    if not chunk.token_count:
                        continue
                    tenant.arrivals.append((chunk.received_at, chunk.token_count))
                    seen = tenant.firsts_s if last_s == started_s else tenant.gaps_s
                    seen.append(chunk.received_at - last_s)
                    last_s = chunk.received_at
        except SeedanceError as error:
            tenant.errors.append(f"{type(error).__name__}: {error}")
            await trio.sleep(0.2)


async def _phase(
    url: str, tenants: Sequence[Tenant], in_flight: Mapping[str, int], seconds: float, max_tokens: int
) -> tuple[float, float]:
    """Keeps so many requests of each in flight; returns from when to when it counts."""
    for tenant in tenants:
        tenant.clear()
    began_s = time.monotonic()
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:

            async def serve(tenant: Tenant) -> None:
                client = AsyncSeedanceClient(url, api_key=tenant.key)
                async with client, trio.open_nursery() as asking:
                    for number in range(in_flight[tenant.name]):
                        asking.start_soon(_ask_for_ever, client, tenant, number, max_tokens)

            for tenant in tenants:
                if in_flight[tenant.name]:
                    nursery.start_soon(serve, tenant)
    return began_s + WARM_UP * seconds, began_s + seconds


def shares(tenants: Sequence[Tenant], from_s: float, to_s: float) -> list[dict[str, Any]]:
    """What each tenant got in a time, beside what its weight says."""
    tokens = {tenant.name: tenant.tokens(from_s, to_s) for tenant in tenants}
    total, weights = sum(tokens.values()), sum(WEIGHTS[tenant.name] for tenant in tenants)
    rows = []
    for tenant in tenants:
        due = WEIGHTS[tenant.name] / weights
        share = tokens[tenant.name] / total if total else math.nan
        rows.append(
            {
                "tenant": tenant.name,
                "weight": WEIGHTS[tenant.name],
                "tokens": tokens[tenant.name],
                "tokens_per_s": tokens[tenant.name] / (to_s - from_s),
                "due": due,
                "share": share,
                "deviation": share / due - 1,
                "ttft_ms": {f"p{p}": _ms(percentile(tenant.firsts_s, p / 100)) for p in (50, 95, 100)},
            }
        )
    return rows


def _ms(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds * 1e3, 1)


def _share_over_time(tenants: Sequence[Tenant], from_s: float, to_s: float) -> dict[str, list[list[float]]]:
    lines: dict[str, list[list[float]]] = {tenant.name: [] for tenant in tenants}
    at_s = from_s + WINDOW_S
    while at_s <= to_s:
        tokens = {tenant.name: tenant.tokens(at_s - WINDOW_S, at_s) for tenant in tenants}
        if total := sum(tokens.values()):
            for name, count in tokens.items():
                lines[name].append([round(at_s - from_s, 1), round(count / total, 4)])
        at_s += 1.0
    return lines


def _latency(tenant: Tenant) -> dict[str, Any]:
    return {
        "requests": len(tenant.firsts_s),
        "ttft_ms": {f"p{p}": _ms(percentile(tenant.firsts_s, p / 100)) for p in (50, 95, 100)},
        "itl_ms": {f"p{p}": _ms(percentile(tenant.gaps_s, p / 100)) for p in (50, 95)},
    }


async def measure(
    url: str, tenants: Sequence[Tenant], options: argparse.Namespace, report: Callable[[str], None]
) -> dict[str, Any]:
    """The three phases."""
    record: dict[str, Any] = {}
    everybody = dict.fromkeys(WEIGHTS, options.in_flight)
    phases = {
        "saturated": (everybody, options.seconds),
        "polite": (everybody | {SMALLEST: 1}, options.seconds / 2),
        "alone": (dict.fromkeys(WEIGHTS, 0) | {SMALLEST: 1}, options.seconds / 4),
    }
    (smallest,) = [tenant for tenant in tenants if tenant.name == SMALLEST]
    for name, (in_flight, seconds) in phases.items():
        report(f"{name}: {in_flight} requests in flight for {seconds:g} s")
        from_s, to_s = await _phase(url, tenants, in_flight, seconds, options.max_tokens)
        record[name] = {"shares": shares(tenants, from_s, to_s), "smallest": _latency(smallest)}
        if name == "saturated":
            record[name]["share_over_time"] = _share_over_time(tenants, from_s, to_s)
    record["errors"] = sorted({error for tenant in tenants for error in tenant.errors})
    return record


def run(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    """Make the keys, start the server, measure, stop it; the whole record."""
    model = options.model_path or demo_model()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "keys.toml"
        tenants = [Tenant(name, _make_key(path, name)) for name in WEIGHTS]
        flags = ["--model-path", model, "--port", "0", "--keys", str(path)]
        flags += ["--journal", str(Path(directory) / "journal.db")]
        flags += [f"--max-sequences={options.rows}", *options.server_flag]
        with running_server(flags, report) as server:
            measured = trio.run(measure, server.url, tenants, options, report)
    return {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": Path(model).name,
        "rows": options.rows,
        "in_flight": options.in_flight,
        "max_tokens": options.max_tokens,
        "machine": machine(),
        **measured,
    }


def _make_key(path: Path, tenant: str) -> str:
    command = [sys.executable, "-m", "seedance_server", "keys", "add", tenant, "--keys", str(path)]
    done = subprocess.run(
        [*command, "--weight", str(WEIGHTS[tenant])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerFailed(done.stderr.strip())
    return done.stdout.strip()


def table(record: Mapping[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"all saturate, {record['in_flight']} requests of each at once, {record['rows']} rows in the batch:",
        f"{'tenant':>8} {'weight':>6} {'tokens':>7} {'tok/s':>7} {'due':>6} {'share':>6} {'off':>6}",
    ]
    lines += [
        f"{row['tenant']:>8} {row['weight']:6g} {row['tokens']:7} {row['tokens_per_s']:7.1f}"
        f" {row['due']:6.1%} {row['share']:6.1%} {row['deviation']:+6.1%}"
        for row in record["saturated"]["shares"]
    ]
    lines.append(f"\n{SMALLEST}, one request at a time:  TTFT P50, P95, max ms      ITL P50, P95 ms")
    for name, title in (("polite", "beside the others"), ("alone", "alone")):
        seen = record[name]["smallest"]
        ttft, itl = seen["ttft_ms"], seen["itl_ms"]
        figures = [ttft["p50"], ttft["p95"], ttft["p100"], itl["p50"], itl["p95"]]
        words = [milliseconds(math.nan if each is None else each / 1e3) for each in figures]
        lines.append(
            f"  {title:20} {seen['requests']:4} requests  {words[0]:>6} {words[1]:>6} {words[2]:>6}"
            f"      {words[3]:>6} {words[4]:>6}"
        )
    return "\n".join(lines)


def picture(record: Mapping[str, Any]) -> str:
    """The shares over time, as SVG."""
    over_time = record["saturated"]["share_over_time"]
    lines = [
        Line(f"{row['tenant']} (due {row['due']:.0%})", [(x, y) for x, y in over_time[row["tenant"]]])
        for row in record["saturated"]["shares"]
    ]
    return line_charts([Plot(f"share of the tokens, over {WINDOW_S:g} s each", lines)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every share was within the tolerance and nothing failed."""
    parser = argparse.ArgumentParser(
        prog="nox -s bench -- fairness", description="Tenants of unequal weights."
    )
    parser.add_argument("--model-path", help="directory, hub id or GGUF file (default: the demo model)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the first phase (default 60)")
    parser.add_argument("--in-flight", type=int, default=12, help="requests of each tenant (default 12)")
    parser.add_argument("--rows", type=int, default=6, help="sequences in the server's batch (default 6)")
    parser.add_argument("--max-tokens", type=int, default=24, help="tokens of each answer (default 24)")
    parser.add_argument("--server-flag", action="append", default=[], help="passed on to the server")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go")
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    options.results.mkdir(parents=True, exist_ok=True)
    record, status = run_to_end(
        "bench", lambda: run(options, lambda line: print(line, file=sys.stderr, flush=True))
    )
    if record is None:
        return status
    name = record["taken_at"].replace(":", "").replace("+0000", "Z")
    written = options.results / f"fairness-{name}.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    written.with_suffix(".svg").write_text(picture(record))
    print(table(record))
    for error in record["errors"]:
        print(f"failed: {error}")
    print(f"\nall figures in {written}, drawn in {written.with_suffix('.svg').name}")
    off = max(abs(row["deviation"]) for row in record["saturated"]["shares"])
    return 1 if record["errors"] or not off <= TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())
