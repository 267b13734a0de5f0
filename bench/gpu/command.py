"""The command: correctness, speed, and a bundle of both, written as it goes.

The bundle is a folder: every figure in `report.json`, `summary.md` to read, `environment.json`, `pytest.log`.
It is written anew after each measurement, so that a machine that goes away leaves what was done until then.
The run keeps to a time: what doesn't fit any more is skipped, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpu.budget import Budget
from gpu.summary import summarise

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
TESTS_S = 200.0
"""For the tests at most: more than they should take where no kernel of PyTorch's ever ran. Picked."""
MODEL_S = {"gemma-3-270m": 10.0, "llama-1b": 15.0, "mistral-7b": 30.0, "tiny": 1.0}
"""To make a model, at a guess."""
CELL_S = 12.0
"""For the first measurement of a model, at a guess; then the longest one so far is the guess."""
RESERVE_S = 5.0
_GPU_FACTS = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")


def main(arguments: Sequence[str]) -> int:
    """Run all of it; 1 where a test or a measurement failed, 2 where there is no such device."""
    options = _parse(arguments)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch  # noqa: PLC0415 - after the device was chosen

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu: PyTorch finds no CUDA device here; --device cpu --tiny tries the script out",
            file=sys.stderr,
        )
        return 2
    budget = Budget(options.budget)
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"environment": describe(options.device), "tests": None, "models": {}}
    _write(output / "environment.json", report["environment"])
    save = partial(_save, output, report, budget)
    save()
    if not options.no_tests:
        report["tests"] = _test(output / "pytest.log", min(TESTS_S, budget.left_s))
        _say(f"tests: {report['tests']['outcome']}, {budget.spent_s:.0f} s")
        save()
    _measure_all(options, budget, report, save)
    save()
    print((output / "summary.md").read_text())
    failed = [each for model in report["models"].values() for each in model["failures"]]
    return 1 if failed or (report["tests"] or {}).get("outcome") in {"failed", "out of time"} else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench gpu", description=__doc__)
    parser.add_argument("--output", required=True, help="folder for the bundle")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to run")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script out")
    parser.add_argument("--budget", type=float, default=440.0, help="seconds for all of it (default 440)")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    return parser.parse_args(arguments)


def describe(device: str) -> dict[str, Any]:
    """What the figures were made on."""
    import platform  # noqa: PLC0415

    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "commit": _first_line(["git", "-C", str(ROOT), "rev-parse", "HEAD"]),
        "device": device,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "gpu_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "nvidia_smi": _first_line(
                ["nvidia-smi", f"--query-gpu={','.join(_GPU_FACTS)}", "--format=csv,noheader"]
            ),
        }
    return found


def _first_line(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def _test(log: Path, limit_s: float) -> dict[str, Any]:
    """Run the tests that need a GPU, in a process of their own."""
    folder = ROOT / "tests" / "gpu"
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(folder / "pytest.ini"),
        "-v",
        "--durations=10",
        str(folder),
    ]
    with log.open("w") as file:
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return {"outcome": "out of time", "last": _last_line(log)}
    outcomes = {0: "passed", 1: "failed", 5: "none"}
    return {"outcome": outcomes.get(done.returncode, "failed"), "last": _last_line(log)}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip("= ") if lines else ""


def _measure_all(
    options: argparse.Namespace, budget: Budget, report: dict[str, Any], save: Callable[[], None]
) -> None:
    from gpu.plan import cells_of, profiled_of, sizes_of  # noqa: PLC0415 - they bring PyTorch in
    from gpu.shapes import SHAPES, TINY  # noqa: PLC0415

    for name, shape in (TINY if options.tiny else SHAPES).items():
        if not budget.allows(name, MODEL_S[name] + CELL_S + RESERVE_S):
            continue
        part: dict[str, Any] = {"cells": [], "kernels": [], "failures": []}
        report["models"][name] = part
        workload, kv_bytes, dtype = sizes_of(options)
        model = None  # the one before it, and its memory
        model = _attempt(part, name, partial(_make, name, shape(), options.device, dtype))
        if model is None:
            continue
        guess_s = CELL_S
        for kind, cell in [*(("cells", each) for each in cells_of(workload)), *profiled_of(workload)]:
            if not budget.allows(f"{name}: {kind}, {cell.name}", guess_s + RESERVE_S):
                continue
            before_s = budget.spent_s
            result = _attempt(part, cell.name, partial(_measure, kind, model, cell, workload, kv_bytes))
            guess_s = max(guess_s if part[kind] else 0.0, budget.spent_s - before_s)
            if result is not None:
                part[kind].append(result)
                _say(f"{name}: {cell.name}: {result['step_ms']:.2f} ms a step")
            save()


def _make(name: str, config: Any, device: str, dtype: Any) -> Any:
    import torch  # noqa: PLC0415

    from gpu.shapes import make_model  # noqa: PLC0415

    return make_model(name, config, torch.device(device), dtype)


def _measure(kind: str, *arguments: Any) -> dict[str, Any]:
    from gpu.speed import kernel_shares, measure  # noqa: PLC0415

    return (measure if kind == "cells" else kernel_shares)(*arguments)


def _attempt(part: dict[str, Any], what: str, work: Callable[[], Any]) -> Any:
    """What doesn't work is a line of the report; the others are still measured."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the bundle must say so
        part["failures"].append({"what": what, "error": f"{type(error).__name__}: {error}"[:500]})
        _say(f"{what}: {type(error).__name__}: {error}")
        return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _save(output: Path, report: dict[str, Any], budget: Budget) -> None:
    report["seconds"] = round(budget.spent_s, 1)
    report["skipped"] = budget.skipped
    _write(output / "report.json", report)
    (output / "summary.md").write_text(summarise(report))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
