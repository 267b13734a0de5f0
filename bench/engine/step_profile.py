"""Where a decode step's time goes: products, attention, the rest of the model, sampler, scheduler, Python.

Runs our engine in this process, without server or client, and times the calls between its parts. On the
native kernels the whole model is one call, so products and attention are measured apart: products with the
same shapes and as many weights, attention over the cache as the last step left it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define

from bar_chart import Bar, BarPlot, bar_charts
from engine.peaks import measure_machine
from engine.report import markdown_table
from engine.roofline import Products, floor_ms
from engine.stopwatch import Stopwatch, milliseconds_of
from engine.workload import Tokenize, burst
from seedance_server.engine.attention import STEP_ARGUMENT, AttentionStep
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import LoadedModel, load_model
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest

__all__ = ["profile", "profile_picture", "profile_table", "shares"]

STEPS = 20
PARTS = ("products", "attention", "rest of the model", "sampler", "scheduler", "other Python")


@define
class _Watched:
    """An engine whose parts are timed, and the attention of its last step."""

    engine: Engine
    loaded: LoadedModel
    watch: Stopwatch
    forward: Callable[..., Any]
    step: AttentionStep | None = None

    @classmethod
    def of(cls, engine: Engine, loaded: LoadedModel) -> _Watched:
        """Time the calls between the parts of an engine."""
        watch = Stopwatch()
        scheduler, sampler = engine._scheduler, engine._sampler  # noqa: SLF001 - a profile looks inside
        scheduler.schedule = watch.around("scheduler", scheduler.schedule)  # type: ignore[method-assign]
        sampler.sample = watch.around("sampler", sampler.sample)  # type: ignore[method-assign]
        watched = cls(engine, loaded, watch, loaded.model.forward)
        timed = watch.around("model", watched.forward)

        def forward(*arguments: Any, **options: Any) -> Any:
            watched.step = options[STEP_ARGUMENT]
            return timed(*arguments, **options)

        loaded.model.forward = forward
        return watched

    def restore(self) -> None:
        """Put the model back as it was."""
        self.loaded.model.forward = self.forward

    def attention_ms(self, rows: int) -> float:
        """Return what the attention of all layers takes for the rows of the last step."""
        geometry, step = self.loaded.geometry, self.step
        assert step is not None
        config = self.loaded.model.config.get_text_config(decoder=True)
        shapes = (
            (config.num_attention_heads, geometry.key_dim),
            (geometry.heads, geometry.key_dim),
            (geometry.heads, geometry.value_dim),
        )
        query, key, value = (torch.randn(1, n, rows, dim).to(geometry.dtype) for n, dim in shapes)

        def attend() -> None:
            for layer, window in enumerate(geometry.windows):
                step.attend(layer, query, key, value, scaling=None, window=window)

        return milliseconds_of(attend)


def shares(
    step_ms: float, spent_ms: dict[str, float], *, products_ms: float, attention_ms: float
) -> dict[str, float]:
    """Split a step into `PARTS`, in ms; products and attention can't have taken longer than the model did.

    Args:
        step_ms: The whole step.
        spent_ms: In "model", "sampler" and "scheduler".
        products_ms: What the products take by themselves.
        attention_ms: What attention takes by itself.
    """
    model = spent_ms.get("model", 0.0)
    attention = min(attention_ms, model)
    products = min(products_ms, model - attention)
    sampler, scheduler = spent_ms.get("sampler", 0.0), spent_ms.get("scheduler", 0.0)
    parts = (products, attention, model - products - attention, sampler, scheduler)
    return dict(zip(PARTS, (*parts, step_ms - model - sampler - scheduler), strict=True))


def _decode_steps(watched: _Watched, rows: int, prompts: Sequence[Sequence[int]]) -> tuple[Any, float]:
    """Return the median step with its parts, and what its attention takes by itself."""
    engine, watch = watched.engine, watched.watch
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
    attention_ms = watched.attention_ms(rows)
    for number in range(rows):
        engine.cancel(number)
    while engine.has_work():
        engine.step()
    # The median step, with its own parts: parts of different steps don't add up.
    return sorted(steps, key=lambda step: step[0])[len(steps) // 2], attention_ms


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
    report("loading the model …")
    model = load_model(str(path))
    products = Products.of(model.model.config.get_text_config(decoder=True))
    engine = Engine(model, EngineConfig(threads=len(cores), speculative_tokens=0))
    engine.bind_thread()
    watched = _Watched.of(engine, model)
    steps = {}
    for rows in levels:
        prompts = [tokenize(each.prompt) for each in burst(f"profile {rows}", rows, 60, 1, tokenize)]
        steps[rows] = _decode_steps(watched, rows, prompts)
        report(f"{rows} rows: {steps[rows][0][0]:.1f} ms a step")
    watched.restore()
    multiply = _multiply(model, products)
    machine = measure_machine(len(cores))
    rows_of_table = []
    for rows, ((step_ms, spent_ms), attention_ms) in steps.items():
        products_ms = multiply(rows)
        parts = shares(step_ms, spent_ms, products_ms=products_ms, attention_ms=attention_ms)
        floor = floor_ms(machine, products, rows)
        row = {"rows": rows, "step_ms": step_ms, "products_ms": products_ms, "attention_ms": attention_ms}
        rows_of_table.append({**row, "floor_ms": floor, "parts_ms": parts})
    return {
        "backend": model.backend.name,
        "weight_bytes": 2 * products.weights,
        "bytes_per_s": machine.bytes_per_s,
        "operations_per_s": machine.operations_per_s,
        "peaks_by": machine.how,
        "steps": rows_of_table,
    }


def profile_table(record: dict[str, Any]) -> str:
    """Lay a profile out as Markdown: where a step's time goes, and how far it is from the machine's best."""
    shares_of = []
    distances = []
    for step in record["steps"]:
        rows, whole, products_ms = step["rows"], step["step_ms"], step["products_ms"]
        parts = [f"{step['parts_ms'][part]:.1f} ({step['parts_ms'][part] / whole:.0%})" for part in PARTS]
        shares_of.append([str(rows), f"{whole:.1f}", *parts])
        bytes_per_s = record["weight_bytes"] / products_ms * 1e3
        operations_per_s = rows * bytes_per_s  # a weight is two bytes, and two operations for each row
        distances.append(
            [
                str(rows),
                f"{products_ms:.1f}",
                f"{bytes_per_s / 1e9:.1f} ({bytes_per_s / record['bytes_per_s']:.0%})",
                f"{operations_per_s / 1e9:.0f} ({operations_per_s / record['operations_per_s']:.0%})",
                f"{step['floor_ms']:.1f}",
                f"{products_ms / step['floor_ms']:.2f}",
                f"{whole / step['floor_ms']:.2f}",
            ]
        )
    read, multiplied = record["bytes_per_s"] / 1e9, record["operations_per_s"] / 1e9
    return (
        f"Decode steps of the engine alone, backend {record['backend']}; ms and share of the step. Products "
        "and attention were measured by themselves.\n\n"
        f"{markdown_table(['sequences', 'step', *PARTS], shares_of)}\n\n"
        f"The machine's best, measured beside it ({record['peaks_by']}): reading {read:.1f} GB/s, "
        f"multiplying {multiplied:.0f} GFLOP/s. "
        f"Floor: a step reads {record['weight_bytes'] / 1e6:.0f} MB of weights and multiplies each row with "
        "them; the slower of the two. In brackets: of the best.\n\n"
        + markdown_table(
            ["sequences", "products ms", "GB/s", "GFLOP/s", "floor ms", "products / floor", "step / floor"],
            distances,
        )
        + "\n"
    )


def profile_picture(record: dict[str, Any]) -> str:
    """Draw the parts of a step at each level as an SVG, and the floor beside them."""
    return bar_charts(
        [
            BarPlot(
                f"{step['rows']} sequences: {step['step_ms']:.1f} ms",
                [Bar(part, step["parts_ms"][part], group) for group, part in enumerate(PARTS)],
                mark=(step["floor_ms"], f"floor of the products {step['floor_ms']:.1f}"),
            )
            for step in record["steps"]
        ]
    )
