"""Where a decode step's time goes: matrix products, the rest of the model, sampler, scheduler, other Python.

Runs our engine in this process, without server or client, and times the calls between its parts. What the
products alone take is measured apart, with the same shapes and as many weights, since on the native kernels
the whole model is one call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define, field

from engine.report import markdown_table
from engine.roofline import Products, floor_ms, measure_machine, milliseconds_of
from engine.workload import Tokenize, burst
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import LoadedModel, load_model
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest

__all__ = ["Stopwatch", "profile", "profile_table", "shares"]

STEPS = 20
PARTS = ("products", "rest of the model", "sampler", "scheduler", "other Python")


@define
class Stopwatch:
    """Adds up the time of calls.

    Attributes:
        spent_s: Seconds by name since the last `take`.
    """

    spent_s: dict[str, float] = field(factory=dict)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, timed under this name."""

        def timed(*arguments: Any, **options: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.spent_s[name] = self.spent_s.get(name, 0.0) + time.perf_counter() - started_s

        return timed

    def take(self) -> dict[str, float]:
        """Return what was added up, and begin anew."""
        taken, self.spent_s = self.spent_s, {}
        return taken


def _instrument(engine: Engine, model: LoadedModel) -> tuple[Stopwatch, Callable[[], None]]:
    """Time the calls between the parts of an engine; the second result puts the model back as it was."""
    watch = Stopwatch()
    scheduler, sampler = engine._scheduler, engine._sampler  # noqa: SLF001 - a profile looks inside
    scheduler.schedule = watch.around("scheduler", scheduler.schedule)  # type: ignore[method-assign]
    sampler.sample = watch.around("sampler", sampler.sample)  # type: ignore[method-assign]
    forward = model.model.forward
    model.model.forward = watch.around("model", forward)

    def restore() -> None:
        model.model.forward = forward

    return watch, restore


def shares(step_ms: float, spent_ms: dict[str, float], products_ms: float) -> dict[str, float]:
    """Split a step into `PARTS`, in ms; the products can't have taken longer than the model did.

    Args:
        step_ms: The whole step.
        spent_ms: In "model", "sampler" and "scheduler".
        products_ms: What the products take by themselves.
    """
    model = spent_ms.get("model", 0.0)
    products = min(products_ms, model)
    sampler, scheduler = spent_ms.get("sampler", 0.0), spent_ms.get("scheduler", 0.0)
    rest = step_ms - model - sampler - scheduler
    return dict(zip(PARTS, (products, model - products, sampler, scheduler, rest), strict=True))


def _decode_steps(engine: Engine, watch: Stopwatch, rows: int, prompts: Sequence[Sequence[int]]) -> Any:
    params = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True, seed=1)
    for number, ids in enumerate(prompts):
        engine.add(GenerationRequest(id=number, prompt_ids=tuple(ids), params=params, arrival_s=0.0))
    generated = dict.fromkeys(range(rows), 0)
    while min(generated.values()) < 3:  # all prompts are through, and what is set up once is set up
        for output in engine.step():
            generated[output.id] += len(output.token_ids)
    watch.take()
    steps = []
    for _ in range(STEPS):
        started_s = time.perf_counter()
        engine.step()
        whole_ms = 1e3 * (time.perf_counter() - started_s)
        steps.append((whole_ms, {name: 1e3 * spent for name, spent in watch.take().items()}))
    for number in range(rows):
        engine.cancel(number)
    while engine.has_work():
        engine.step()
    # The median step, with its own parts: parts of different steps don't add up.
    return sorted(steps, key=lambda step: step[0])[len(steps) // 2]


def _multiply(model: LoadedModel, products: Products) -> Callable[[int], float]:
    """Return what tells how long all products of a step take for so many rows, in ms."""
    native = model.backend.name.startswith("native")
    calls: list[Callable[[torch.Tensor], object]] = []
    if native:
        from seedance_server.engine.kernels.library import open_library  # noqa: PLC0415 - where it runs
        from seedance_server.engine.kernels.linear import PackedWeights  # noqa: PLC0415
        from seedance_server.engine.kernels.weight_memory import WeightMemory  # noqa: PLC0415

        memory = WeightMemory(open_library())
        room: dict[tuple[int, int], torch.Tensor] = {}

        def packed_call(weights: PackedWeights) -> Callable[[torch.Tensor], object]:
            def call(x: torch.Tensor) -> object:
                key = (len(x), weights.columns)
                out = room.setdefault(key, torch.empty(key, dtype=torch.bfloat16))
                return weights.multiply(x, out=out)

            return call

        calls = [
            packed_call(PackedWeights.of(torch.randn(columns, width).bfloat16(), memory))
            for columns, width in products.shapes
        ]
    else:
        dtype = next(model.model.parameters()).dtype
        matrices = [torch.randn(columns, width).to(dtype) for columns, width in products.shapes]

        def plain_call(matrix: torch.Tensor) -> Callable[[torch.Tensor], object]:
            return lambda x: torch.nn.functional.linear(x, matrix)

        calls = [plain_call(matrix) for matrix in matrices]

    def measure(rows: int) -> float:
        inputs = {width: torch.randn(rows, width).bfloat16() for _, width in products.shapes}
        if not native:
            dtype = next(model.model.parameters()).dtype
            inputs = {width: x.to(dtype) for width, x in inputs.items()}

        def once() -> None:
            for (_, width), call in zip(products.shapes, calls, strict=True):
                call(inputs[width])

        return milliseconds_of(once)

    return measure


@torch.inference_mode()
def profile(
    path: Path, levels: Sequence[int], cores: Sequence[int], tokenize: Tokenize, report: Callable[[str], None]
) -> dict[str, Any]:
    """Take decode steps apart at each number of sequences.

    Args:
        path: Directory of the model.
        levels: Numbers of sequences.
        cores: Processors to use; as many threads.
        tokenize: The model's tokenizer.
        report: Gets a line for each thing done.
    """
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    model = load_model(str(path), progress=report)
    products = Products.of(model.model.config.get_text_config(decoder=True))
    engine = Engine(model, EngineConfig(threads=len(cores), speculative_tokens=0))
    engine.bind_thread()
    watch, restore = _instrument(engine, model)
    steps = {}
    for rows in levels:
        prompts = [tokenize(each.prompt) for each in burst(f"profile {rows}", rows, 60, 1, tokenize)]
        steps[rows] = _decode_steps(engine, watch, rows, prompts)
        report(f"{rows} rows: {steps[rows][0]:.1f} ms a step")
    restore()
    multiply = _multiply(model, products)
    machine = measure_machine()
    rows_of_table = []
    for rows, (step_ms, spent_ms) in steps.items():
        parts = shares(step_ms, spent_ms, multiply(rows))
        floor = floor_ms(machine, products, rows)
        rows_of_table.append({"rows": rows, "step_ms": step_ms, "floor_ms": floor, "parts_ms": parts})
    return {
        "backend": model.backend.name,
        "weight_bytes": 2 * products.weights,
        "bytes_per_s": machine.bytes_per_s,
        "operations_per_s": machine.operations_per_s,
        "steps": rows_of_table,
    }


def profile_table(record: dict[str, Any]) -> str:
    """Lay a profile out as Markdown."""
    rows = []
    for step in record["steps"]:
        whole = step["step_ms"]
        parts = [f"{step['parts_ms'][part]:.1f} ({step['parts_ms'][part] / whole:.0%})" for part in PARTS]
        floor = step["floor_ms"]
        rows.append([str(step["rows"]), f"{whole:.1f}", *parts, f"{floor:.1f}", f"{whole / floor:.2f}"])
    heads = ["sequences", "step ms", *PARTS, "floor ms", "step / floor"]
    return (
        f"Decode steps of the engine alone, backend {record['backend']}; ms and share. Floor: "
        f"{record['weight_bytes'] / 1e6:.0f} MB of weights at {record['bytes_per_s'] / 1e9:.1f} GB/s, or "
        f"their products at {record['operations_per_s'] / 1e9:.0f} GFLOP/s, both measured here.\n\n"
        f"{markdown_table(heads, rows)}\n"
    )
