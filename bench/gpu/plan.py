"""What is measured, in the order of what is worth most if the time runs out."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from gpu.speed import Cell, Workload

__all__ = ["cells_of", "profiled_of", "sizes_of"]

STREAMS = (1, 8, 32, 128)
_KV_BYTES = 8 * 2**30
_TINY_KV_BYTES = 2**22


def sizes_of(options: argparse.Namespace) -> tuple[Workload, int, torch.dtype]:
    """How much to measure, the size of the KV pool in bytes, and the type of the weights."""
    if options.tiny:
        return Workload(steps=3, profiled_steps=2, streams=(1, 2)), _TINY_KV_BYTES, torch.float32
    dtype = torch.bfloat16
    return Workload(steps=50, profiled_steps=5, streams=STREAMS), _KV_BYTES, dtype


def cells_of(workload: Workload) -> list[Cell]:
    """One for each number of streams: greedy with and without graphs, then drawn."""
    cells = [Cell(each, graphs) for each in workload.streams for graphs in ("on", "off")]
    return [*cells, Cell(workload.streams[-1], "on", temperature=1.0)]


def profiled_of(workload: Workload) -> list[tuple[str, Any]]:
    """What the profiler sees: few and many streams, with graphs and without."""
    ends = workload.streams[0], workload.streams[-1]
    return [("kernels", Cell(each, graphs)) for each in ends for graphs in ("on", "off")]
