"""What prompts beside running answers cost and gain: tokens a second, first tokens, gaps between next ones.

The engine alone, in this process, without server, client and drafts. Policies that say how many prompt tokens
a step may hold take turns within a round, over the same levels: bursts of requests that arrive at once, and
answers that run while prompts arrive at Poisson times. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from attrs import define, field

from engine.report import markdown_table
from engine.workload import poisson_times
from figures import percentile
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.prefill_budget import PrefillBudget
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from server_process import ServerFailed, demo_model

__all__ = ["POLICIES", "Times", "burst_figures", "main", "random_prompts", "run_level"]

Policy: TypeAlias = Callable[[PrefillBudget], Callable[[int, int], int]]

POLICIES: dict[str, Policy] = {
    "as it comes": lambda budget: budget.tokens_beside,
    "whoever waits": lambda budget: lambda decodes, _prompts: budget.tokens_beside(decodes, 0),
    "64 a step": lambda _budget: lambda _decodes, _prompts: 64,
    "128 a step": lambda _budget: lambda _decodes, _prompts: 128,
    "256 a step": lambda _budget: lambda _decodes, _prompts: 256,
}
"""*As it comes* is what the engine does; *whoever waits*: the same, blind to how many prompts wait."""

PROMPT_TOKENS, ANSWER_TOKENS = 60, 48
ARRIVING_ANSWER_TOKENS = 160
"""Of the answers that run while prompts arrive: long enough for the arrivals to fall into them."""
ARRIVING_SECONDS = 10.0


@define
class Times:
    """When tokens came, in seconds on one clock.

    Attributes:
        arrived_s: When each request was added.
        tokens_s: When each one's tokens came.
    """

    arrived_s: dict[int, float] = field(factory=dict)
    tokens_s: dict[int, list[float]] = field(factory=dict)

    @property
    def first_tokens_s(self) -> list[float]:
        """Of each request, from its arrival to its first token."""
        return [times[0] - self.arrived_s[number] for number, times in self.tokens_s.items()]

    def gaps_s(self, numbers: Sequence[int], *, from_s: float = -math.inf) -> list[float]:
        """Times between tokens of these requests, as far as they begin at ``from_s`` or later."""
        return [
            later - earlier
            for number in numbers
            for earlier, later in zip(self.tokens_s[number], self.tokens_s[number][1:], strict=False)
            if earlier >= from_s
        ]


def run_level(engine: Engine, requests: Sequence[tuple[float, tuple[int, ...], int]]) -> Times:
    """Serve requests as they arrive, to the end.

    Args:
        engine: Nothing runs in it.
        requests: Seconds from now, prompt and length of the answer, by time.
    """
    times, ahead = Times(), list(enumerate(requests))
    began_s = time.monotonic()
    while ahead or engine.has_work():
        while ahead and began_s + ahead[0][1][0] <= time.monotonic():
            number, (moment_s, prompt_ids, tokens) = ahead.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, seed=1)
            arrived_s = times.arrived_s[number] = began_s + moment_s
            engine.add(
                GenerationRequest(id=number, prompt_ids=prompt_ids, params=params, arrival_s=arrived_s)
            )
        if not engine.has_work():
            time.sleep(0.001)
            continue
        outputs = engine.step()
        now_s = time.monotonic()
        for output in outputs:
            times.tokens_s.setdefault(output.id, []).extend([now_s] * len(output.token_ids))
    return times


def random_prompts(dice: random.Random, vocab_size: int) -> Iterator[tuple[int, ...]]:
    """Prompts without end."""
    while True:  # none begins like another one, so the pool holds nothing of it
        yield tuple(dice.randrange(vocab_size) for _ in range(PROMPT_TOKENS))


def _figures(times: Times, numbers: Sequence[int], from_s: float) -> dict[str, float]:
    gaps = times.gaps_s(numbers, from_s=from_s)
    count = sum(map(len, times.tokens_s.values()))
    spent_s = max(map(max, times.tokens_s.values())) - min(times.arrived_s.values())
    return {
        "tokens_per_s": count / spent_s,
        "first_token_p50_ms": 1e3 * percentile(times.first_tokens_s, 0.5),
        "gap_p50_ms": 1e3 * percentile(gaps, 0.5),
        "gap_p99_ms": 1e3 * percentile(gaps, 0.99),
    }


def burst_figures(engine: Engine, streams: int, prompts: Iterator[tuple[int, ...]]) -> dict[str, float]:
    """Serve so many requests that arrive at once; returns tokens a second and milliseconds."""
    times = run_level(engine, [(0.0, next(prompts), ANSWER_TOKENS) for _ in range(streams)])
    return _figures(times, range(streams), from_s=-math.inf)


def _arrivals(
    engine: Engine, streams: int, rate: float, prompts: Iterator[tuple[int, ...]]
) -> dict[str, float]:
    """Gaps are those of the first answers, once all of them run; first tokens those of the arrivals."""
    moments = poisson_times("arrivals", rate, ARRIVING_SECONDS)
    running = [(0.0, next(prompts), ARRIVING_ANSWER_TOKENS) for _ in range(streams)]
    times = run_level(engine, [*running, *((moment, next(prompts), 16) for moment in moments)])
    first = range(streams)
    all_run_s = max(times.tokens_s[number][0] for number in first)
    figures = _figures(times, first, from_s=all_run_s)
    late = [
        times.tokens_s[number][0] - arrived_s
        for number, arrived_s in times.arrived_s.items()
        if arrived_s >= all_run_s
    ]
    return figures | {"first_token_p50_ms": 1e3 * percentile(late, 0.5)} if late else figures


def _table(records: Sequence[dict[str, Any]]) -> str:
    """One row for each level and policy: medians over the rounds, and tokens/s over the first policy's."""
    rows = []
    first_policy = records[0]["policy"]
    for level in dict.fromkeys(record["level"] for record in records):
        of_level = [record for record in records if record["level"] == level]
        plain = {each["round"]: each["tokens_per_s"] for each in of_level if each["policy"] == first_policy}
        for policy in dict.fromkeys(record["policy"] for record in of_level):
            mine = [record for record in of_level if record["policy"] == policy]
            names = ("tokens_per_s", "first_token_p50_ms", "gap_p50_ms", "gap_p99_ms")
            middle = [median(record[name] for record in mine) for name in names]
            ratio = median(record["tokens_per_s"] / plain[record["round"]] for record in mine)
            spread = median(record["gap_p99_ms"] / record["gap_p50_ms"] for record in mine)
            rows.append(
                [level, policy, *(f"{value:.0f}" for value in middle), f"{spread:.2f}", f"{ratio:.3f}"]
            )
    heads = ["level", "prompt tokens", "tokens/s", "TTFT P50 ms", "ITL P50 ms", "ITL P99 ms", "P99 / P50"]
    return markdown_table([*heads, f"tokens/s over '{first_policy}'"], rows)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(POLICIES):
        raise argparse.ArgumentTypeError(f"of {', '.join(POLICIES)}, separated by commas")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every level under every policy, and prints a table, and JSON if asked."""
    parser = argparse.ArgumentParser(prog="bench prefill", description=__doc__)
    add = parser.add_argument
    add("--streams", type=_numbers, default=[8, 32, 64, 128], help="bursts (default 8,32,64,128)")
    add("--arrivals", type=_numbers, default=[32], help="answers that run while prompts arrive (default 32)")
    add("--rate", type=float, default=2.0, help="prompts that arrive a second (default 2)")
    add("--policies", type=_names, default=list(POLICIES)[:2], help=f"of {', '.join(POLICIES)}")
    add("--rounds", type=int, default=3, help="times through all levels (default 3)")
    add("--cores", type=_numbers, default=[0, 1], help="processors to use (default 0,1)")
    add("--model-path", default=None, help="another model than the demo's")
    add("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args(argv)
    try:
        path = arguments.model_path or demo_model()
    except ServerFailed as error:
        print(f"bench prefill: {error}", file=sys.stderr)
        return 1
    os.sched_setaffinity(0, arguments.cores)
    torch.set_num_threads(len(arguments.cores))
    model = load_model(str(path))
    engine = Engine(model, EngineConfig(threads=len(arguments.cores), speculative_tokens=0))
    budget = engine._prefill_budget  # noqa: SLF001 - what is compared is set from outside
    prompts = random_prompts(random.Random(1), model.vocab_size)
    burst_figures(engine, 4, prompts)  # what is set up once
    records: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        for kind, streams in [("burst", n) for n in arguments.streams] + [
            ("arrivals", n) for n in arguments.arrivals
        ]:
            for policy in arguments.policies:
                engine._scheduler._prefill_budget = POLICIES[policy](budget)  # noqa: SLF001 - as above
                figures = (
                    burst_figures(engine, streams, prompts)
                    if kind == "burst"
                    else _arrivals(engine, streams, arguments.rate, prompts)
                )
                name = str(streams) if kind == "burst" else f"{streams}, {arguments.rate:g} a second arrive"
                records.append({"level": name, "policy": policy, "round": number} | figures)
    print(_table(records))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
