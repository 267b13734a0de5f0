"""Decode steps of the engine alone: tokens a second, where a step's time goes, memory.

The spans of the forward pass and of the sampler lie between marks on the device's compute stream. They are
not its working time: the step before has left it nothing to do, so it passes the first mark at once, and a
span holds what the host takes to queue the work as well. How long the device works in a step only the
profiler tells (`kernel_shares`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
from attrs import frozen
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # a name that PyTorch's types leave out
from torch.profiler import ProfilerActivity, profile

from seedance_server.engine.config import EngineConfig, GraphsName
from seedance_server.engine.engine import Engine
from seedance_server.engine.model_loader import LoadedModel
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest

__all__ = ["Cell", "Workload", "kernel_shares", "kernels_of", "measure"]

_PROMPT_TOKENS = 60
_KERNELS = 12
"""Of the longest kernels, which are named."""


@frozen
class Workload:
    """How much to measure.

    Attributes:
        steps: Decode steps of each cell.
        profiled_steps: Steps under the profiler.
        streams: How many answers run side by side, ascending.
    """

    steps: int
    profiled_steps: int
    streams: tuple[int, ...]


@frozen
class Cell:
    """One measurement.

    Attributes:
        streams: Answers that run side by side.
        graphs: Whether steps are recorded.
        temperature: Of all of them.
    """

    streams: int
    graphs: GraphsName
    temperature: float = 0.0

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.streams} streams, graphs {self.graphs}, temperature {self.temperature:g}"


def measure(model: LoadedModel, cell: Cell, workload: Workload, kv_bytes: int) -> dict[str, Any]:
    """Run one cell.

    Args:
        model: Which one.
        cell: What of it.
        workload: How much.
        kv_bytes: Size of the KV pool.

    Returns:
        Figures: milliseconds, tokens a second, bytes.
    """
    cuda = model.device.type == "cuda"
    _let_go(model)
    started_s = time.perf_counter()
    engine = _engine(model, cell, workload, kv_bytes)
    recording_s = time.perf_counter() - started_s
    _fill(engine, model, cell)
    streams, runner, sampler = engine._streams, engine._runner, engine._sampler  # noqa: SLF001 - looks inside
    marks: list[list[Any]] = []
    run, sample = runner.run, sampler.sample

    def marked_run(*arguments: Any) -> Any:
        marks.append([streams.mark()])
        result = run(*arguments)
        marks[-1].append(streams.mark())
        return result

    def marked_sample(*arguments: Any) -> Any:
        result = sample(*arguments)
        marks[-1].append(streams.mark())
        return result

    runner.run = marked_run  # type: ignore[assignment, method-assign]
    sampler.sample = marked_sample  # type: ignore[assignment, method-assign]
    steps_ms = []
    for _ in range(workload.steps):
        started_s = time.perf_counter()
        engine.step()
        steps_ms.append(1e3 * (time.perf_counter() - started_s))
    forward_span_ms = median(1e3 * streams.seconds_between(start, end) for start, end, _ in marks)
    sampler_span_ms = median(1e3 * streams.seconds_between(start, end) for _, start, end in marks)
    step_ms = median(steps_ms)
    graphs = runner.graphs
    return {
        "streams": cell.streams,
        "graphs": cell.graphs,
        "temperature": cell.temperature,
        "tokens_per_s": 1e3 * cell.streams * len(steps_ms) / sum(steps_ms),
        "step_ms": step_ms,
        "step_ms_p99": sorted(steps_ms)[min(len(steps_ms) - 1, int(0.99 * len(steps_ms)))],
        "forward_span_ms": forward_span_ms,
        "sampler_span_ms": sampler_span_ms,
        "rest_ms": step_ms - forward_span_ms - sampler_span_ms,
        "recording_s": recording_s,
        "recorded_sizes": 0 if graphs is None else graphs.recorded,
        "replays": 0 if graphs is None else graphs.replays,
        "obstacle": None if graphs is None else graphs.obstacle,
        "peak_bytes": torch.cuda.max_memory_allocated(model.device) if cuda else None,
        "reserved_bytes": torch.cuda.memory_reserved(model.device) if cuda else None,
    }


def kernel_shares(model: LoadedModel, cell: Cell, workload: Workload, kv_bytes: int) -> dict[str, Any]:
    """Run some steps under PyTorch's profiler.

    Returns:
        Milliseconds of a step, those in which kernels and copies ran, those in which none did, and the
        longest of them with theirs. On a CPU its operators stand in for kernels.
    """
    _let_go(model)
    engine = _engine(model, cell, workload, kv_bytes)
    _fill(engine, model, cell)
    cuda = model.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        started_s = time.perf_counter()
        for _ in range(workload.profiled_steps):
            engine.step()
        if cuda:
            torch.cuda.synchronize()
        step_ms = 1e3 * (time.perf_counter() - started_s) / workload.profiled_steps
    spent: Callable[[Any], float] = lambda event: (  # noqa: E731 - one name for two attributes
        event.self_device_time_total if cuda else event.self_cpu_time_total
    )
    averages = profiler.key_averages()
    events = sorted(kernels_of(averages) if cuda else averages, key=spent, reverse=True)
    per_step = 1e3 * workload.profiled_steps
    busy_ms = sum(map(spent, events)) / per_step
    return {
        "streams": cell.streams,
        "graphs": cell.graphs,
        "step_ms": step_ms,
        "busy_ms": busy_ms,
        "idle_ms": step_ms - busy_ms,
        "kernels": [
            {"name": event.key[:120], "ms": spent(event) / per_step, "calls": event.count}
            for event in events[:_KERNELS]
            if spent(event) > 0
        ],
    }


def kernels_of(events: Iterable[Any]) -> list[Any]:
    """The events that are the device's own.

    An operator of the host's has its kernels' time too, and a named range that of all in it: with them, time
    would be counted twice.
    """
    own = [event for event in events if event.device_type == DeviceType.CUDA]
    return [event for event in own if not event.is_user_annotation]


def _let_go(model: LoadedModel) -> None:
    """Free what earlier engines held, who refer to themselves in circles: their pools are large."""
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(model.device)


def _engine(model: LoadedModel, cell: Cell, workload: Workload, kv_bytes: int) -> Engine:
    # Wide enough for all prompts at once: what is measured are the steps behind them.
    config = EngineConfig(
        kv_memory_bytes=kv_bytes,
        max_sequences=workload.streams[-1],
        prefill_budget_tokens=2048,
        cuda_graphs=cell.graphs,
        speculative_tokens=0,
        prefix_reuse="off",
    )
    engine = Engine(model, config)
    engine.record_graphs()
    return engine


def _fill(engine: Engine, model: LoadedModel, cell: Cell) -> None:
    """Start all answers, and run until each has a few tokens: what is set up once is set up."""
    params = SamplingParams(temperature=cell.temperature, max_tokens=10_000, ignore_eos=True, seed=1)
    for number in range(cell.streams):
        ids = tuple((31 * number + 7 * place) % model.vocab_size for place in range(_PROMPT_TOKENS))
        engine.add(GenerationRequest(id=number, prompt_ids=ids, params=params, arrival_s=0.0))
    generated = dict.fromkeys(range(cell.streams), 0)
    while min(generated.values()) < 3:
        for output in engine.step():
            if output.finish is not None and output.finish.error is not None:
                raise output.finish.error
            generated[output.id] += len(output.token_ids)
