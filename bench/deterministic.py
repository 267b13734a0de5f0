"""What it costs that output doesn't depend on what else runs: tokens a second by `--deterministic`.

The engine alone, in this process, without server, client and drafts; the settings take turns within a round,
over the same bursts. With each goes what the look at start finds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the server does, before PyTorch is there

import torch

from engine.report import markdown_table
from prefill import burst_figures, random_prompts
from seedance_server.engine.config import DeterministicName, EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.errors import KernelsUnavailable, NotDeterministic
from seedance_server.engine.model_loader import load_model
from server_process import ServerFailed, demo_model

__all__ = ["main"]

SETTINGS: tuple[DeterministicName, ...] = ("off", "auto", "on")


def _found(engine: Engine) -> str:
    try:
        return engine.prove_invariance()
    except NotDeterministic as error:
        return str(error)


def _table(records: Sequence[dict[str, Any]]) -> str:
    rows = []
    for kernels, streams in dict.fromkeys((each["kernels"], each["streams"]) for each in records):
        here = [each for each in records if (each["kernels"], each["streams"]) == (kernels, streams)]
        plain = {each["round"]: each["tokens_per_s"] for each in here if each["setting"] == SETTINGS[0]}
        cells = []
        for setting in SETTINGS:
            mine = [each for each in here if each["setting"] == setting]
            ratio = median(each["tokens_per_s"] / plain[each["round"]] for each in mine)
            cells.append(f"{median(each['tokens_per_s'] for each in mine):.0f} ({ratio:.2f})")
        rows.append([kernels, str(streams), *cells])
    return markdown_table(["kernels", "streams", *(f"{setting}, tokens/s" for setting in SETTINGS)], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every setting on every path, and prints a table, and JSON if asked."""
    parser = argparse.ArgumentParser(prog="bench deterministic", description=__doc__)
    add = parser.add_argument
    add("--streams", default="1,8,32", help="bursts (default 1,8,32)")
    add("--kernels", default="torch,native", help="paths (default torch,native)")
    add("--rounds", type=int, default=3, help="times through all levels (default 3)")
    add("--threads", type=int, default=2, help="of the processor (default 2)")
    add("--model-path", default=None, help="another model than the demo's")
    add("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    records: list[dict[str, Any]] = []
    try:
        path = str(arguments.model_path or demo_model())
        for kernels in arguments.kernels.split(","):
            model = load_model(path, kernels=kernels)
            engines = {
                setting: Engine(
                    model,
                    EngineConfig(threads=arguments.threads, speculative_tokens=0, deterministic=setting),
                )
                for setting in SETTINGS
            }
            for setting, engine in engines.items():
                print(f"{kernels}, {setting}: {_found(engine)}", flush=True)
            prompts = random_prompts(random.Random(1), model.vocab_size)
            for number in range(arguments.rounds):
                for streams in map(int, arguments.streams.split(",")):
                    for setting, engine in engines.items():
                        figures = burst_figures(engine, streams, prompts)
                        place = {"kernels": kernels, "streams": streams, "setting": setting, "round": number}
                        records.append(place | figures)
    except (ServerFailed, KernelsUnavailable) as error:
        print(f"bench deterministic: {error}", file=sys.stderr)
        return 1
    print()
    print(_table(records))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
