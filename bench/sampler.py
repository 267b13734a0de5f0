"""What choosing tokens costs: greedy rows, rows with each kind of parameter, and all kinds side by side.

Runs our engine in this process, without drafts, and times its sampler within decode steps of the real model:
random logits would be flatter than a model's. The masks of answers with a prescribed form are made outside
the sampler, so what they take is counted with it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

import seedance_server.engine.engine as engine_module
from engine.report import markdown_table
from engine.stopwatch import Stopwatch
from engine.workload import prompt
from load import RESULTS, machine
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import LoadedModel, load_model
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sampling_rows import sampling_rows
from seedance_server.engine.sequence import GenerationRequest
from server_process import demo_model

__all__ = ["KINDS", "MIXED", "main", "measure"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p, peaked": {"temperature": 0.3, "top_p": 0.95},
    "top_p, flat": {"temperature": 1.0, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "top_k, min_p": {"temperature": 0.8, "top_k": 40, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "logit_bias": {"temperature": 0.0, "logit_bias": dict.fromkeys(range(100, 120), 1.5)},
    "logprobs, greedy": {"temperature": 0.0, "logprobs": True, "top_logprobs": 5},
    "logprobs, drawn": {"temperature": 0.8, "logprobs": True, "top_logprobs": 5},
    "a form": {"temperature": 0.8, "regex": "[a-z ,.]{5000}"},
}
"""Parameters by what they are for; each row with a seed of its own."""
MIXED = "all kinds mixed"
PROMPT_TOKENS = 20


def _params(kind: str, number: int) -> SamplingParams:
    chosen = list(KINDS.values())[number % len(KINDS)] if kind == MIXED else KINDS[kind]
    return SamplingParams(max_tokens=4000, seed=number, ignore_eos="regex" not in chosen, **chosen)


def measure(
    model: LoadedModel, kind: str, rows: int, steps: int, *, kv_memory_bytes: int = 2**29
) -> dict[str, float]:
    """Milliseconds of the median step, and of the sampler in it.

    Args:
        model: To run.
        kind: Of `KINDS`, or `MIXED` for all of them in turn.
        rows: Sequences.
        steps: Decode steps that are timed.
        kv_memory_bytes: Size of the KV pool.
    """

    def tokenize(text: str) -> list[int]:
        ids: list[int] = model.tokenizer(text)["input_ids"]
        return ids

    config = EngineConfig(speculative_tokens=0, max_sequences=rows, kv_memory_bytes=kv_memory_bytes)
    engine = Engine(model, config)
    watch = Stopwatch()
    engine._sampler.sample = watch.around("sampler", engine._sampler.sample)  # type: ignore[method-assign]  # noqa: SLF001 - a profile looks inside
    engine.step = watch.around("step", engine.step)  # type: ignore[method-assign]
    with patch.object(engine_module, "sampling_rows", watch.around("sampler", sampling_rows)):
        for number in range(rows):
            ids = tuple(tokenize(prompt(f"{kind} {rows} {number}", PROMPT_TOKENS, tokenize)))
            params = _params(kind, number)
            engine.add(GenerationRequest(id=number, prompt_ids=ids, params=params, arrival_s=0.0))
        generated = dict.fromkeys(range(rows), 0)
        while min(generated.values()) < 3:  # all prompts are through, and what is set up once is set up
            for output in engine.step():
                generated[output.id] += len(output.token_ids)
                if output.finish is not None:
                    raise RuntimeError(f"an answer ended before its time: {output.finish}")
        watch.take()
        taken = []
        for _ in range(steps):
            engine.step()
            taken.append(watch.take())
    return {name: 1e3 * median(each[name] for each in taken) for name in ("sampler", "step")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(prog="sampler", description=__doc__)
    parser.add_argument("--rows", default="1,8,32", help="numbers of sequences (default: 1,8,32)")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed (default: 10)")
    parser.add_argument("--rounds", type=int, default=1, help="times through all kinds (default: 1)")
    parser.add_argument("--kernels", default="auto", help="auto, torch or native (default: auto)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of PyTorch (default: one each core)"
    )
    parser.add_argument("--model-path", type=Path, help="directory of the model (default: the demo model)")
    options = parser.parse_args(arguments)
    levels = [int(part) for part in options.rows.split(",")]
    torch.set_num_threads(options.threads)
    model = load_model(str(options.model_path or demo_model()), kernels=options.kernels)
    found: dict[str, dict[int, list[dict[str, float]]]] = {}
    for number in range(options.rounds):
        for kind in (*KINDS, MIXED):
            for rows in levels:
                taken = measure(model, kind, rows, options.steps)
                found.setdefault(kind, {}).setdefault(rows, []).append(taken)
                print(f"round {number}, {kind}, {rows}: {taken}", file=sys.stderr, flush=True)
    table = [
        [kind, *(f"{median(each['sampler'] for each in by_rows[rows]):.2f}" for rows in levels)]
        for kind, by_rows in found.items()
    ]
    print(markdown_table(["ms of the sampler, by rows", *map(str, levels)], table))
    taken_at = datetime.now(UTC).isoformat(timespec="seconds").replace(":", "").replace("+0000", "Z")
    path = RESULTS / f"sampler-{taken_at}.json"
    path.write_text(
        json.dumps({"machine": machine(), "backend": model.backend.name, "ms": found}, indent=1) + "\n"
    )
    print(f"all figures in {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
