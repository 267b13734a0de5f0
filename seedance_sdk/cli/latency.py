"""``seedance latency``: asks again and again, and shows what it took, live: quantiles and the histogram.

The figures are those of `SeedanceClient.latency`; here they are only drawn.
"""

from __future__ import annotations

import argparse
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from seedance_sdk.blocking import SeedanceClient
from seedance_sdk.cli.arguments import add_sampling, add_server, sampling_of
from seedance_sdk.cli.context import Context, printable
from seedance_sdk.cli.pace import format_ms
from seedance_sdk.errors import ConnectionFailed, RequestRefused, SeedanceError
from seedance_sdk.latency_report import AnswerFigures, LatencyReport
from seedance_sdk.latency_sketch import Distribution
from seedance_sdk.options import Options

__all__ = ["add_command", "draw", "run"]

_PROMPT = "Once upon a time there was a small boat that"
_BAR_CELLS = 36
_DRAWN_PER_SECOND = 6


def add_command(commands: Any) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "latency",
        help="measure",
        description="Asks again and again, several at once, and shows what it takes. Ctrl-C ends it early.",
        allow_abbrev=False,
    )
    parser.add_argument("--requests", type=_positive, default=20, metavar="N", help="in all (default: 20)")
    parser.add_argument("--streams", type=_positive, default=2, metavar="N", help="at once (default: 2)")
    parser.add_argument("--prompt", default=_PROMPT, metavar="TEXT", help="what is continued")
    parser.add_argument("--json", action="store_true", help="write the whole report as JSON at the end")
    add_server(parser)
    add_sampling(parser)
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def run(given: argparse.Namespace, context: Context) -> int:
    """Runs it: 1 where a request failed, as the report says too."""
    options: Options = {"max_tokens": 64, **sampling_of(given)}
    with context.client(given.url, given.api_key) as client:
        asking = _Asking(client, given.prompt, options, given.requests)
        watching = context.err if given.json else context.out
        live = (
            Live(
                get_renderable=lambda: draw(client.latency.report(), asking.asked, given.requests),
                console=watching,
                refresh_per_second=_DRAWN_PER_SECOND,
                transient=True,
            )
            if watching.is_terminal
            else nullcontext()
        )
        with live, ThreadPoolExecutor(given.streams, thread_name_prefix="seedance-latency") as pool:
            try:
                for done in [pool.submit(asking.run) for _ in range(given.streams)]:
                    done.result()
            except KeyboardInterrupt:
                asking.stop()
            except BaseException:
                asking.stop()
                raise
        report = client.latency.report()
        if given.json:
            context.write(f"{report.to_json(indent=2)}\n")
        else:
            context.out.print(draw(report, asking.asked, given.requests))
        return 1 if report.answers.failed else 0


class _Asking:
    """Requests, until there were enough, from several threads.

    Attributes:
        asked: How many were begun.
    """

    def __init__(self, client: SeedanceClient, prompt: str, options: Options, requests: int) -> None:
        self._client = client
        self._prompt = prompt
        self._options = options
        self._requests = requests
        self._lock = threading.Lock()
        self.asked = 0

    def stop(self) -> None:
        """Begins no more, and ends those that run."""
        self._requests = 0
        self._client.close()

    def run(self) -> None:
        """Asks one after the other.

        Raises:
            SeedanceError: It makes no sense to ask again.
        """
        while self._take():
            try:
                self._client.complete(prompt=self._prompt, **self._options)
            except (ConnectionFailed, RequestRefused):
                raise
            except SeedanceError:
                if not self._requests:
                    return  # stopped: this one was cut off by it; else it is counted as failed

    def _take(self) -> bool:
        with self._lock:
            if self.asked >= self._requests:
                return False
            self.asked += 1
            return True


def draw(report: LatencyReport, asked: int, requests: int) -> RenderableType:
    """The report as a table and a histogram."""
    figures = report.answers
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.title = (
        f"{figures.finished} of {requests} answers, {asked - figures.finished - figures.failed} on their way"
    )
    for heading in ("", "count", "P50", "P90", "P99", "longest"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {"first token": figures.ttft, "between tokens": figures.itl, "whole answer": figures.total}
    for name, times in rows.items():
        table.add_row(name, *_cells(times))
    for endpoint in report.endpoints:
        if endpoint.handshake.count:
            table.add_row("handshake", *_cells(endpoint.handshake))
        if endpoint.round_trip.count:
            table.add_row("round trip", *_cells(endpoint.round_trip))
    return Group(table, *_bars(figures), Text(_outcome(report), style="red" if figures.failed else "dim"))


def _cells(times: Distribution) -> list[str]:
    quantiles = (times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms)
    return [f"{times.count:,}", *(format_ms(quantile) for quantile in quantiles)]


def _bars(figures: AnswerFigures) -> list[Text]:
    """A line for each bucket of the gaps between tokens, its bar, and the share up to there."""
    most = max((bucket.count for bucket in figures.histogram), default=0)
    if most == 0:
        return []
    lines = [Text("between tokens", style="bold")]
    for bucket in figures.histogram:
        end = "∞" if bucket.below_ms is None else f"{bucket.below_ms:g}"
        bar = "█" * round(_BAR_CELLS * bucket.count / most) or ("▏" if bucket.count else "")
        line = Text(f"{f'[{bucket.from_ms:g}, {end})':>14} ms ")
        line.append(f"{bar:<{_BAR_CELLS}}", style="cyan")
        lines.append(line.append(f" {bucket.count:>7,} {bucket.share:>8.2%}"))
    return lines


def _outcome(report: LatencyReport) -> str:
    figures = report.answers
    rate = figures.tokens / report.seconds if report.seconds else 0.0
    words = (
        f"{figures.tokens:,} tokens in {report.seconds:.1f} s, {rate:.1f} a second; {figures.failed} failed"
    )
    if figures.interrupted:
        words += f"; {figures.interrupted} interrupted, outage {format_ms(figures.outage.max_ms)} at most"
    return printable(words)
