"""What drafts cost where they don't help, and what they bring where they do: the engine alone, in turns.

Two engines over one model, one with drafts and one without, answer the same requests, a step of the one and a
step of the other, so that both meet what disturbs the machine; who goes first changes from round to round.
Text drawn at temperature 1 after words in no order repeats hardly anything, so that guesses are mostly wrong.
Texts of `unseen_texts` take turns, one a stream and round. Both must give the same tokens, which is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import torch
from attrs import frozen

from engine.report import markdown_table
from engine.workload import TEXTS, Tokenize, prompt, text_request
from load import RESULTS, machine
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from server_process import demo_model
from unseen_texts import UNSEEN

__all__ = ["DRAWN", "Run", "answer", "main", "requests"]

DRAWN = "drawn"
"""Text without repetition: words in no order, then draws at temperature 1."""
PROMPT_TOKENS = 60


@frozen
class Run:
    """How one engine answered some requests.

    Attributes:
        seconds: Of the steps after the first in which all answers had begun.
        token_ids: By request.
        drafted: Tokens that were run ahead.
        accepted: Those of them that were right.
    """

    seconds: float
    token_ids: tuple[tuple[int, ...], ...]
    drafted: int
    accepted: int


class _Answering:
    """One engine at work on some requests."""

    def __init__(self, engine: Engine, requests: Sequence[GenerationRequest]) -> None:
        self.engine = engine
        self._before = engine.statistics()
        self._ids: dict[int, list[int]] = {request.id: [] for request in requests}
        self._seconds = 0.0
        for request in requests:
            engine.add(request)

    def step(self) -> None:
        """One of its steps, if there is one left."""
        if not self.engine.has_work():
            return
        begun, started_s = all(self._ids.values()), time.perf_counter()
        for output in self.engine.step():
            self._ids[output.id] += output.token_ids
        if begun:  # prompts aren't timed
            self._seconds += time.perf_counter() - started_s

    def run(self) -> Run:
        """What came of it."""
        after = self.engine.statistics()
        return Run(
            self._seconds,
            tuple(map(tuple, self._ids.values())),
            after.drafted_tokens - self._before.drafted_tokens,
            after.accepted_tokens - self._before.accepted_tokens,
        )


def requests(
    kind: str, streams: int, number: int, tokens: int, tokenize: Tokenize
) -> list[GenerationRequest]:
    """Return the requests of one level, none of which occurs in another round, but for `UNSEEN`.

    Args:
        kind: `DRAWN`, or of `engine.workload.TEXTS` or `UNSEEN`, which are answered greedily.
        streams: How many.
        number: Of the round.
        tokens: Of each answer.
        tokenize: The model's tokenizer.
    """
    made = []
    for stream in range(streams):
        seed = 1000 * number + stream
        if kind == DRAWN:
            text, temperature = prompt(f"drafts {seed}", PROMPT_TOKENS, tokenize), 1.0
        elif kind in UNSEEN:
            text, temperature = UNSEEN[kind][(number * streams + stream) % len(UNSEEN[kind])], 0.0
        else:
            text, temperature = text_request(kind, seed, tokens).prompt, 0.0
        params = SamplingParams(
            temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=kind not in UNSEEN
        )
        ids = tuple(tokenize(text))
        made.append(GenerationRequest(id=stream, prompt_ids=ids, params=params, arrival_s=0.0))
    return made


def answer(engines: Sequence[Engine], requests: Sequence[GenerationRequest]) -> list[Run]:
    """Let each engine answer all requests, in turns of a step."""
    answering = [_Answering(engine, requests) for engine in engines]
    while any(each.engine.has_work() for each in answering):
        for each in answering:
            each.step()
    return [each.run() for each in answering]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints a table; 1 if the two engines gave different tokens."""
    parser = argparse.ArgumentParser(prog="drafts", description=__doc__)
    add = parser.add_argument
    add("--streams", default="1,2,4,8", help="levels (default: 1,2,4,8)")
    add("--texts", default=DRAWN, help=f"of {','.join((DRAWN, *TEXTS, *UNSEEN))} (default: {DRAWN})")
    add("--tokens", type=int, default=64, help="tokens of an answer (default: 64)")
    add("--rounds", type=int, default=5, help="times through all levels (default: 5)")
    add("--kernels", default="auto", help="auto, torch or native (default: auto)")
    add("--threads", type=int, default=os.cpu_count(), help="of PyTorch (default: one each core)")
    add("--model-path", type=Path, help="directory of the model (default: the demo model)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = load_model(str(options.model_path or demo_model()), kernels=options.kernels)
    settings = {"drafts": EngineConfig(kv_memory_bytes=2**29)}
    settings["plain"] = attrs.evolve(settings["drafts"], speculative_tokens=0)
    engines = {name: Engine(model, config) for name, config in settings.items()}
    print(engines["drafts"].measure_steps(), file=sys.stderr)

    def tokenize(text: str) -> list[int]:
        ids: list[int] = model.tokenizer(text)["input_ids"]
        return ids

    levels = [(kind, int(part)) for kind in options.texts.split(",") for part in options.streams.split(",")]
    found: dict[str, list[dict[str, Any]]] = {f"{kind}, {streams}": [] for kind, streams in levels}
    status = 0
    for number in range(options.rounds):
        for kind, streams in levels:
            asked = requests(kind, streams, number, options.tokens, tokenize)
            names = sorted(engines, reverse=bool(number % 2))
            runs = dict(zip(names, answer([engines[name] for name in names], asked), strict=True))
            same = runs["drafts"].token_ids == runs["plain"].token_ids
            status |= not same
            drafts, plain = runs["drafts"], runs["plain"]
            figures = {
                "ratio": plain.seconds / drafts.seconds,
                "plain_s": plain.seconds,
                "drafted": drafts.drafted,
                "accepted": drafts.accepted,
                "same": same,
            }
            found[f"{kind}, {streams}"].append(figures)
            print(f"round {number}, {kind}, {streams}: {figures}", file=sys.stderr, flush=True)
    rows = []
    for level, runs_of in found.items():
        ratios = [each["ratio"] for each in runs_of]
        counts = [sum(each[name] for each in runs_of) for name in ("drafted", "accepted")]
        spread = f"{median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f})"
        rows.append([level, spread, *map(str, counts), str(all(each["same"] for each in runs_of))])
    print(markdown_table(["text, streams", "speed over plain", "drafted", "right", "same tokens"], rows))
    taken_at = datetime.now(UTC).isoformat(timespec="seconds").replace(":", "").replace("+0000", "Z")
    path = RESULTS / f"drafts-{taken_at}.json"
    path.write_text(
        json.dumps({"machine": machine(), "backend": model.backend.name, "found": found}, indent=1) + "\n"
    )
    print(f"all figures in {path}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
