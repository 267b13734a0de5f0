"""Fuzzes every target for a bounded time, coverage-guided by atheris.

    python fuzz/run.py --seconds 10 [--target NAME]

Each target runs in a process of its own, starting from `corpus/NAME/`, which is only read: what the fuzzer
finds new goes to a temporary directory. A crash is printed with the path of its input, and the exit status is
1; the input belongs into the corpus once the fault is mended.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # as `fuzz.targets`, like the tests

_GRACE_S = 60
"""Start-up and the last input, on a slow machine."""

_MAX_INPUT_BYTES = 4096
"""Long enough for several messages; longer inputs only slow the search down."""

_INPUT_TIMEOUT_S = 10
"""A single input that takes so long is reported as a crash: nothing here may hang."""


def fuzz_one(name: str, arguments: list[str]) -> None:
    """Runs one target in this process until libFuzzer exits it."""
    atheris = import_module("atheris")  # not needed by the process that starts the others
    with atheris.instrument_imports(include=["seedance_wire"]):
        targets = import_module("fuzz.targets").TARGETS
    atheris.Setup([f"fuzz-{name}", *arguments], targets[name])
    atheris.Fuzz()


def fuzz_all(names: list[str], seconds: float) -> int:
    """Runs targets one after the other, sharing the time; returns the exit status."""
    share = max(1, round(seconds / len(names)))
    findings = Path(tempfile.mkdtemp(prefix="seedance-fuzz-"))
    failed = []
    for name in names:
        new_inputs, crashes = findings / name / "corpus", findings / name / "crashes"
        for directory in (new_inputs, crashes):
            directory.mkdir(parents=True)
        command = [
            sys.executable,
            str(HERE / "run.py"),
            f"--run-one={name}",
            str(new_inputs),
            str(HERE / "corpus" / name),
            f"-max_total_time={share}",
            f"-max_len={_MAX_INPUT_BYTES}",
            f"-timeout={_INPUT_TIMEOUT_S}",
            f"-artifact_prefix={crashes}/",
            "-print_final_stats=1",
        ]
        try:
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=share + _GRACE_S,
                check=False,
            )
            output, status = result.stdout + result.stderr, result.returncode
        except subprocess.TimeoutExpired as error:
            output, status = f"did not stop in time: {error}", -1
        runs = next((s.split()[-1] for s in output.splitlines() if "number_of_executed_units" in s), "?")
        print(f"{name:<16} {runs:>9} inputs in {share} s  {'ok' if status == 0 else 'FAILED'}", flush=True)
        if status != 0:
            failed.append(name)
            print("\n".join(output.splitlines()[-40:]))
    if failed:
        print(f"failed: {', '.join(failed)}; inputs under {findings}")
        return 1
    shutil.rmtree(findings)
    return 0


def main() -> int:
    """Parses the command line and fuzzes."""
    if len(sys.argv) > 1 and sys.argv[1].startswith("--run-one="):
        fuzz_one(sys.argv[1].partition("=")[2], sys.argv[2:])
        return 0
    targets = sorted(import_module("fuzz.targets").TARGETS)
    parser = argparse.ArgumentParser(description="Fuzz the wire's parsers for a bounded time.")
    parser.add_argument("--seconds", type=float, default=40, help="for all targets together (default: 40)")
    parser.add_argument("--target", choices=targets, action="append", help="only this one (repeatable)")
    options = parser.parse_args()
    return fuzz_all(options.target or targets, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
