"""Run the checks: `python -m conformance --role client|server [options] -- COMMAND…`; see README.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from conformance.runner import Outcome, Result, run
from conformance.subject import SubjectBroken

__all__ = ["main"]

OURS = {
    "client": (sys.executable, str(Path(__file__).parent / "subjects" / "sdk.py")),
    "server": (sys.executable, str(Path(__file__).parent / "subjects" / "server.py")),
}
"""Our own client and server, where no command is given."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the checks; 0 where none failed, 1 where one did, 2 where the implementation does not start."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--role", choices=("client", "server"), action="append", help="default: both")
    parser.add_argument("--short", action="store_true", help="leave the long checks out")
    parser.add_argument("--only", default="", metavar="TEXT", help="checks whose name contains this")
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    parser.add_argument("command", nargs="*", help="starts the implementation; default: our own")
    arguments = parser.parse_args(argv)
    results: list[Result] = []
    for role in arguments.role or ("client", "server"):
        command = arguments.command or OURS[role]
        print(f"{role}: {' '.join(command)}")
        work = partial(run, command, role, short=arguments.short, only=arguments.only, report=_show)
        try:
            results += trio.run(work)
        except SubjectBroken as error:
            print(f"  it does not start: {error}", file=sys.stderr)
            return 2
    if arguments.json is not None:
        rows = [
            {
                "check": result.check.name,
                "section": result.check.section,
                "subprotocol": result.subprotocol,
                "outcome": result.outcome.value,
                "reason": result.reason,
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ]
        arguments.json.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    counts = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
    print(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()))
    return 1 if counts[Outcome.FAILED] or not counts[Outcome.PASSED] else 0


def _show(result: Result) -> None:
    line = f"  {result.outcome.value:8}{result.check.name:58} {result.subprotocol:17} {result.seconds:6.2f} s"
    print(line.rstrip(), flush=True)
    if result.outcome is Outcome.FAILED:
        print(f"          wanted: {result.check.demand} (PROTOCOL.md, {result.check.section})")
        print(f"          but: {result.reason}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
