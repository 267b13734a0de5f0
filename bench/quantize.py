"""What weights of 8 bits cost in quality and bring in speed: the engine alone, beside the model as it is.

Quality: both read the same text, Python's documentation and a module of its library as every installation has
them, and tell what they expect at each token. Speed: both decode the same streams, some steps each in turn.
Speed is to be measured on an idle machine; quality is the same on any that adds in the same order.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median

import attrs
import torch
from attrs import frozen
from torch import Tensor

from engine.report import markdown_table
from engine.workload import Tokenize, burst
from load import RESULTS, machine
from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.engine.sequence import Sequence as Tokens
from server_process import demo_model

__all__ = ["Quality", "Speed", "main", "quality", "speed", "texts"]

WINDOW = 256
"""Tokens that are read at once, from nothing."""
MOST_LETTERS = 8
"""Of a token, on average: what is behind them needn't be cut into tokens."""
ROWS_AT_ONCE = 64
"""Of a wide vocabulary's probabilities in float32."""


@frozen
class Quality:
    """What two models expect of the same text.

    Attributes:
        tokens: How many were expected.
        perplexity: Of the model as it is.
        quantized: Perplexity with weights of 8 bits.
        same_first: Share of tokens before which both put the same one first.
        divergence: Mean Kullback-Leibler divergence of the second from the first, in nats a token.
    """

    tokens: int
    perplexity: float
    quantized: float
    same_first: float
    divergence: float


@frozen
class Speed:
    """Decode steps of both, in ms.

    Attributes:
        streams: Sequences in a step.
        plain_ms: Medians of the model as it is, by round.
        quantized_ms: The same with weights of 8 bits.
    """

    streams: int
    plain_ms: tuple[float, ...]
    quantized_ms: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """How many times as fast, round by round."""
        return [plain / other for plain, other in zip(self.plain_ms, self.quantized_ms, strict=True)]


def texts() -> dict[str, str]:
    """Prose and code that come with Python."""
    return {
        "documentation": "\n\n".join(topics[name] for name in sorted(topics)),
        "code": inspect.getsource(argparse),
    }


@torch.inference_mode()
def _logits(engine: Engine, ids: Sequence[int]) -> Tensor:
    """What is expected behind each of some tokens: [tokens, vocabulary], until the next call."""
    request = GenerationRequest(id=0, prompt_ids=tuple(ids[:1]), params=SamplingParams(), arrival_s=0.0)
    table = engine._pool.new_table()  # noqa: SLF001 - the engine itself gives the last token's alone
    sequence = Tokens(request, order=0, seed=0, limit=len(ids) + 1, table=table)
    engine._pool.reserve(table, len(ids))  # noqa: SLF001
    # All behind the first count as a draft: so the logits of each are wanted.
    chunk = Chunk(sequence, 0, len(ids), samples=True, draft=tuple(ids[1:]))
    logits = engine._runner.run(Batch.of([chunk]))  # noqa: SLF001
    engine._pool.release(table)  # noqa: SLF001
    return logits


@torch.inference_mode()
def quality(
    plain: Engine, quantized: Engine, ids: Sequence[int], windows: int, window: int = WINDOW
) -> Quality:
    """Let both read the beginning of a text.

    Args:
        plain: Of the model as it is; its longest chunk is a window at least.
        quantized: The same with weights of 8 bits.
        ids: The text's tokens.
        windows: How many times ``window`` tokens are read.
        window: Tokens of each.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    tokens = 0
    for start in range(0, min(windows * window, len(ids) - window + 1), window):
        part = ids[start : start + window]
        both = [_logits(engine, part)[:-1] for engine in (plain, quantized)]
        for row in range(0, window - 1, ROWS_AT_ONCE):
            one, other = (each[row : row + ROWS_AT_ONCE].float().log_softmax(-1) for each in both)
            wanted = torch.tensor(part[row + 1 : row + 1 + len(one)])[:, None]
            same = one.argmax(-1) == other.argmax(-1)
            divergence = (one.exp() * (one - other)).sum(-1)
            found = (-one.gather(1, wanted), -other.gather(1, wanted), same, divergence)
            sums += torch.stack([each.double().sum() for each in found])
        tokens += window - 1
    plain_nats, quantized_nats, same_first, divergence_nats = (sums / tokens).tolist()
    return Quality(tokens, math.exp(plain_nats), math.exp(quantized_nats), same_first, divergence_nats)


def speed(
    plain: Engine, quantized: Engine, streams: int, tokenize: Tokenize, *, rounds: int, steps: int
) -> Speed:
    """Let both decode, some steps each in turn; who goes first changes from round to round.

    Args:
        plain: Of the model as it is, without drafts.
        quantized: The same with weights of 8 bits.
        streams: Sequences in a step, each of 60 tokens to begin with.
        tokenize: The model's tokenizer.
        rounds: How often both have their turn.
        steps: Of a turn; their median counts.
    """
    params = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True, seed=1)
    engines = (plain, quantized)
    for engine in engines:
        for number, asked in enumerate(burst(f"quantize {streams}", streams, 60, 1, tokenize)):
            ids = tuple(tokenize(asked.prompt))
            engine.add(GenerationRequest(id=number, prompt_ids=ids, params=params, arrival_s=0.0))
        begun: set[int] = set()
        while len(begun) < streams:
            begun |= {output.id for output in engine.step() if output.token_ids}
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            times = []
            for _ in range(steps):
                started_s = time.perf_counter()
                engines[which].step()
                times.append(1e3 * (time.perf_counter() - started_s))
            found[which].append(median(times))
    for engine in engines:
        for number in range(streams):
            engine.cancel(number)
        while engine.has_work():
            engine.step()
    return Speed(streams, tuple(found[0]), tuple(found[1]))


def _tables(qualities: dict[str, Quality], speeds: Sequence[Speed]) -> str:
    heads = ["text", "tokens", "perplexity", "with 8 bits", "same first token", "divergence, nats"]
    rows = [
        [
            name,
            str(each.tokens),
            f"{each.perplexity:.2f}",
            f"{each.quantized:.2f}",
            f"{each.same_first:.1%}",
            f"{each.divergence:.4f}",
        ]
        for name, each in qualities.items()
    ]
    parts = [markdown_table(heads, rows)] if rows else []
    rows = [
        [
            str(each.streams),
            f"{median(each.plain_ms):.1f}",
            f"{median(each.quantized_ms):.1f}",
            f"{median(each.ratios):.2f} ({min(each.ratios):.2f}..{max(each.ratios):.2f})",
        ]
        for each in speeds
    ]
    parts += [markdown_table(["streams", "step ms", "with 8 bits", "times as fast"], rows)] if rows else []
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints tables and writes all figures."""
    parser = argparse.ArgumentParser(prog="bench quantize", description=__doc__)
    add = parser.add_argument
    add("--windows", type=int, default=4, help=f"of {WINDOW} tokens of each text; 0 for none (default: 4)")
    add("--streams", default="1,2,4,8,16,32", help="levels; '' for none (default: 1,2,4,8,16,32)")
    add("--rounds", type=int, default=5, help="turns of each at a level (default: 5)")
    add("--steps", type=int, default=8, help="of a turn (default: 8)")
    add("--threads", type=int, default=os.cpu_count(), help="of PyTorch (default: one each core)")
    add("--model-path", type=Path, help="directory of the model (default: the demo model)")
    add("--results", type=Path, default=RESULTS, help="where results go")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    path = str(options.model_path or demo_model())
    models = [
        load_model(path, dtype="bfloat16", kernels="native", quantize=kind) for kind in ("none", "int8")
    ]
    config = EngineConfig(kv_memory_bytes=2**29, speculative_tokens=0, prefix_reuse="off")
    plain, quantized = (Engine(model, config) for model in models)

    def tokenize(text: str) -> list[int]:
        ids: list[int] = models[0].tokenizer(text)["input_ids"]
        return ids

    qualities = {}
    for name, text in texts().items() if options.windows else ():
        ids = tokenize(text[: MOST_LETTERS * WINDOW * options.windows])
        qualities[name] = quality(plain, quantized, ids, options.windows)
        print(f"{name}: {qualities[name]}", file=sys.stderr, flush=True)
    speeds = []
    for streams in map(int, filter(None, options.streams.split(","))):
        speeds.append(speed(plain, quantized, streams, tokenize, rounds=options.rounds, steps=options.steps))
        print(f"{streams}: {speeds[-1]}", file=sys.stderr, flush=True)
    print(_tables(qualities, speeds))
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "taken_at": taken_at,
        "machine": machine(),
        "python": platform.python_version(),
        "backends": [model.backend.name for model in models],
        "quality": {name: attrs.asdict(each) for name, each in qualities.items()},
        "speed": [attrs.asdict(each) for each in speeds],
    }
    options.results.mkdir(parents=True, exist_ok=True)
    written = options.results / f"quantize-{taken_at.replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(json.dumps(record, indent=1) + "\n")
    print(f"all figures in {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
