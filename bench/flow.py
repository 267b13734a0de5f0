"""`nox -s bench -- flow`: what slow readers cost others, and what becomes of a burst that is read too slowly.

The server is a process of its own with everything that `seedance-server` has but the model: its engine only
counts, a piece a step (`scripted_server.py`). So the figures are the server's, and the steps are known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from burst import Burst, measure_burst
from line_chart import Line, Plot, line_charts
from load import RESULTS, machine
from server_process import RunningServer, ServerFailed, running_server, stop_like_ctrl_c_on_sigterm
from stalled_readers import Readers, measure_stalled

__all__ = ["main"]

SERVER = Path(__file__).with_name("scripted_server.py")


def run(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    """Start the server, take both measurements, stop it; return the whole record."""
    record: dict[str, Any] = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "step_ms": options.step_ms,
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory(dir=options.results) as directory:
        flags = [f"--step-ms={options.step_ms}", "--port", "0", "--log-format", "json"]
        flags += ["--journal", str(Path(directory) / "journal.db"), *options.server_flag]
        with running_server(flags, report, program=(str(SERVER),)) as server:
            readers = Readers(options.good, options.stalled, options.pieces, options.rounds)
            record["stalled"] = measure_stalled(server, readers, report)
            step_s = options.step_ms / 1e3
            burst = Burst(options.burst, options.burst_pieces, step_s, options.slower * step_s)
            record["burst"] = measure_burst(server.url, burst, report)
        record["server"] = _served(server)
    return record


def _served(server: RunningServer) -> dict[str, Any]:
    """What the server said of its run when it ended."""
    for line in reversed(server.log):
        if '"event": "served"' in line:
            said: dict[str, Any] = json.loads(line)
            return said
    raise ServerFailed("the server didn't say what it did")


def table(record: dict[str, Any]) -> str:
    """Lay the figures out as text."""
    stalled, burst, server = record["stalled"], record["burst"], record["server"]
    coordinated, alone = burst["coordinated"], burst["socket_alone"]
    rows = [f"{stalled['good']} good readers, a step of {record['step_ms']:g} ms: ITL in ms"]
    rows.append(f"{'':24}{'P50':>8}{'P95':>8}{'P99':>8}{'mean':>8}")
    for name, words in (("alone", "alone"), ("beside", f"beside {stalled['stalled']} standing")):
        itl = stalled["itl_ms"][name]
        rows.append(f"{words:24}" + "".join(f"{itl[key]:8.2f}" for key in ("p50", "p95", "p99", "mean")))
    by_round = ", ".join(f"{ratio:.3f}" for ratio in stalled["itl_ratio_by_round_p50"])
    rows.append(f"ratio of means {stalled['itl_ratio_mean']:.3f}; of P50 in each round {by_round}")
    for each in stalled["memory_bytes"]:
        first, last, most = (each[key] / 1e6 for key in ("first", "last", "most"))
        rows.append(f"server's memory meanwhile: {first:.1f} MB, at the end {last:.1f}, at most {most:.1f}")
    rows.append(f"frames missing: {stalled['frames_missing']}")
    rows.append("")
    rows.append(
        f"a burst of {burst['streams']} requests, pieces made each {burst['step_ms']:g} ms, "
        f"taken each {burst['take_ms']:g} ms"
    )
    rows.append(
        f"  coordinated, measured: {coordinated['lost']} frames lost; window {coordinated['window_first']} "
        f"-> {coordinated['window_least_mean']} (-{coordinated['window_shrinkage']:.0%}), "
        f"{coordinated['window_mean']} on average; queue at most "
        f"{coordinated['queued_most']}; {coordinated['throttles']} THROTTLE, {coordinated['pauses']} PAUSE"
    )
    rows.append(
        f"  at the socket alone, reckoned: {alone['lost']} of {alone['made']} frames lost in each stream "
        f"with a buffer of {alone['buffer']}"
    )
    rows.append("")
    rows.append(
        f"edge to scheduler, {server['decisions']} decisions: P50 {server['decision_p50_ms']} ms, "
        f"P99 {server['decision_p99_ms']} ms, most {server['decision_max_ms']} ms"
    )
    rows.append(
        f"  beside what was left of the running step: P50 {server['step_left_p50_ms']} ms, "
        f"P99 {server['step_left_p99_ms']} ms"
    )
    rows.append(
        f"turns of the event loop over 50 ms: {server['loop_stalls']}, "
        f"longest {server['longest_loop_stall_ms']} ms"
    )
    return "\n".join(rows)


def picture(record: dict[str, Any]) -> str:
    """Draw queue and window over the burst, and the server's memory beside standing readers."""
    coordinated, alone = record["burst"]["coordinated"], record["burst"]["socket_alone"]
    memory = record["stalled"]["memory_over_time"]
    queued = [(each["at_s"], each["queued"]) for each in coordinated["samples"]]
    window = [(each["at_s"], each["window"]) for each in coordinated["samples"]]
    standing = [(each["at_s"], each["standing"]) for each in coordinated["samples"]]
    overflow = [(each["at_s"], each["queued"]) for each in alone["samples"]]
    return line_charts(
        [
            Plot(
                "frames that wait for the application, mean of all streams of the burst",
                [Line("coordinated", queued), Line("socket alone (reckoned)", overflow)],
                mark=(alone["buffer"], f"its buffer: beyond it frames are lost ({alone['lost_share']:.0%})"),
            ),
            Plot(
                "window in frames, mean of all streams", [Line("coordinated", window)], mark=(32, "at first")
            ),
            Plot("streams that stand", [Line("coordinated", standing)]),
            Plot(
                "memory of the server beside standing readers, MB",
                [
                    Line(f"round {number}", [(at_s, rss / 1e6) for at_s, rss in each])
                    for number, each in enumerate(memory, 1)
                ],
            ),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if no frame was missing, 1 otherwise or if the server failed."""
    parser = argparse.ArgumentParser(prog="nox -s bench -- flow", description="Slow readers and a burst.")
    parser.add_argument("--step-ms", type=float, default=40.0, help="time of a step (default 40)")
    parser.add_argument("--good", type=int, default=20, help="good readers (default 20)")
    parser.add_argument("--stalled", type=int, default=100, help="readers that stand still (default 100)")
    parser.add_argument("--pieces", type=int, default=150, help="pieces of their answers (default 150)")
    parser.add_argument("--rounds", type=int, default=3, help="turns with and without them (default 3)")
    parser.add_argument("--burst", type=int, default=32, help="requests of the burst (default 32)")
    parser.add_argument("--burst-pieces", type=int, default=120, help="pieces of each (default 120)")
    parser.add_argument("--slower", type=float, default=4.0, help="readers' time in steps (default 4)")
    parser.add_argument("--server-flag", action="append", default=[], help="passed on to the server")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go")
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    options.results.mkdir(parents=True, exist_ok=True)
    try:
        record = run(options, lambda line: print(line, file=sys.stderr, flush=True))
    except ServerFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    written = options.results / f"flow-{record['taken_at'].replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    written.with_suffix(".svg").write_text(picture(record))
    print(table(record))
    print(f"\nall figures in {written}, drawn in {written.with_suffix('.svg').name}")
    return 1 if record["stalled"]["frames_missing"] or record["burst"]["coordinated"]["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
