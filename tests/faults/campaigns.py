"""Every fault campaign at full size, one after the other, and the table of what came of them.

`python -m tests.faults.campaigns` is what `nox -s faults` runs: some twenty minutes, most of them waiting for
a killed server to load its model again. Exit status 1 if a single byte was lost, repeated or changed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog
import trio

from seedance_wire.codec import SUBPROTOCOLS
from tests.faults.kill_campaign import kill_campaign
from tests.faults.offset_campaign import offset_campaign
from tests.faults.simulated_campaign import simulated_campaign
from tests.faults.tally import Tally, table

__all__ = ["main"]

RESUME_P99_S = 2.0
"""What was promised, from a client's first connection to its first new byte."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all campaigns and prints the table."""
    parser = argparse.ArgumentParser(description="Harms connections and servers, and counts what is lost.")
    parser.add_argument("--faults", type=int, default=10_000, help="in simulated time, all encodings")
    parser.add_argument("--kills", type=int, default=100, help="SIGKILLs of a real process, 8 streams each")
    parser.add_argument("--every", type=int, default=1, help="try only each so-manieth byte")
    parser.add_argument("--seed", type=int, default=0, help="of all choices")
    options = parser.parse_args(arguments)
    structlog.configure(processors=[_drop])
    tallies: list[Tally] = []
    try:
        _run(options, tallies)
    finally:  # what was found out by then is worth knowing, whatever ended it
        sys.stdout.write(table(tallies))
    return _judge(tallies)


def _run(options: argparse.Namespace, tallies: list[Tally]) -> None:
    tallies.append(offset_campaign(every=options.every, report=_report("bytes")))
    share = options.faults // len(SUBPROTOCOLS) + 1
    for subprotocol in SUBPROTOCOLS:
        report = _report(subprotocol)
        tallies.append(simulated_campaign(share, seed=options.seed, subprotocol=subprotocol, report=report))
    if options.kills:
        with tempfile.TemporaryDirectory() as directory:
            report = _report("kills")
            run = partial(kill_campaign, Path(directory), options.kills, seed=options.seed, report=report)
            tallies.append(trio.run(run))


def _judge(tallies: Sequence[Tally]) -> int:
    failed = False
    for tally in tallies:
        for finding in tally.verdict.findings:
            sys.stdout.write(f"{tally.name}: {finding}\n")
        for line in tally.wrong:
            sys.stdout.write(f"{tally.name}: {line}\n")
        failed |= not tally.sound
        late = [resume_s for resume_s in tally.resumes_s if resume_s > RESUME_P99_S]
        if len(late) > len(tally.resumes_s) / 100:
            sys.stdout.write(f"{tally.name}: {len(late)} streams took over {RESUME_P99_S:g} s to go on\n")
            failed = True
    return 1 if failed else 0


def _report(name: str) -> Callable[[str], None]:
    """Progress on stderr, a line every ten seconds."""
    shown_s = time.monotonic()

    def report(line: str) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s > 10:
            shown_s = time.monotonic()
            sys.stderr.write(f"{name}: {line}\n")
            sys.stderr.flush()

    return report


def _drop(_logger: object, _method: str, _event: object) -> dict[str, object]:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
