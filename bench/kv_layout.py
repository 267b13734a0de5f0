"""Where keys and values could lie: attention of one decode step over each layout, and the memory it takes.

*Slots*: each sequence owns as many rows as the longest may have, and is read as a view. *Slabs*: it owns the
next power of two, moves when it outgrows that, and is read with those of its size. *Paged*: blocks of 16 rows
in any order, which torch gathers side by side at each step, all as the longest or those of a size together,
and the native kernel looks up. To the native kernel a slot is one long block, and so would a slab be, but for
the moves. Keys and values are as the demo model's: one head of 256, four query heads, bfloat16. Several
planes take turns, as layers do, so that the processor's caches hold no more of them than in a step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the server does, before PyTorch is there

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.report import markdown_table
from seedance_server.engine.huge_pages import prefer_huge_pages
from seedance_server.engine.kernels.library import KernelsMissing, open_library

__all__ = ["WORKLOADS", "Pool", "main", "reserved_rows"]

LAYOUTS = ("slots", "slabs", "paged")
LONGEST = 2048
BLOCK = 16
SMALLEST_SLAB = 64
HEADS, SHARED, DIM = 1, 4, 256
PLANES = 4
LAYERS = 18
SMALLEST_SIZE = 256
"""Up to so many rows are read together, as the engine does on torch's path; then up to twice as many."""
MULTIPLE = 64
"""To which torch's reads are padded, as the engine pads them."""


Run: TypeAlias = Callable[[int], object]
"""Attention over one plane."""


def _lengths(first: int, last: int, dice: random.Random) -> int:
    return round(first * math.pow(last / first, dice.random()))  # each doubling is as likely as any


WORKLOADS: dict[str, Callable[[int, random.Random], int]] = {
    "60 to 108": lambda _number, dice: dice.randint(60, 108),
    "60 to 2,000": lambda _number, dice: _lengths(60, 2000, dice),
    "half 60 to 108, half 1,500 to 2,000": lambda number, dice: (
        dice.randint(60, 108) if number % 2 else dice.randint(1500, 2000)
    ),
}
"""The length of each sequence."""


def _up_to(multiple: int, length: int) -> int:
    return -(-length // multiple) * multiple


def _slab(length: int) -> int:
    return max(SMALLEST_SLAB, 1 << (length - 1).bit_length())


def reserved_rows(layout: str, length: int) -> int:
    """Rows that a sequence of this length occupies in a layout."""
    return {"slots": LONGEST, "slabs": _slab(length), "paged": _up_to(BLOCK, length)}[layout]


@frozen
class Pool:
    """Planes of keys and values: rows of [heads, dim] each.

    Attributes:
        keys: [rows, heads, dim].
        values: [rows, heads, dim].
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def of(cls, rows: int, *, huge_pages: bool = True) -> Pool:
        """A plane of random rows."""
        parts = [torch.empty((rows, HEADS, DIM), dtype=torch.bfloat16) for _ in range(2)]
        for part in parts:
            if huge_pages:
                prefer_huge_pages(part)
            part.normal_()
        return cls(*parts)


Prepare: TypeAlias = Callable[[Sequence[int], Sequence[Pool]], Run]


def _mask(lengths: Sequence[int], width: int) -> Tensor:
    seen = torch.arange(width) < torch.tensor(lengths)[:, None]
    mask = torch.zeros(seen.shape, dtype=torch.bfloat16)
    return mask.masked_fill_(~seen, torch.finfo(torch.bfloat16).min)[:, None, None]


def _attend(query: Tensor, keys_and_values: Iterable[Tensor], mask: Tensor) -> Tensor:
    """One query row for each sequence; keys and values [sequences, rows, heads, dim]."""
    keys, values = (part.transpose(1, 2) for part in keys_and_values)
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask)


def _view_of_slots(lengths: Sequence[int], pools: Sequence[Pool]) -> Run:
    width = _up_to(MULTIPLE, max(lengths))
    mask = _mask(lengths, width)
    query = torch.randn(len(lengths), HEADS, SHARED, DIM).bfloat16()

    def run(plane: int) -> object:
        parts = (
            part[: len(lengths) * LONGEST].view(len(lengths), LONGEST, HEADS, DIM)[:, :width]
            for part in (pools[plane].keys, pools[plane].values)
        )
        return _attend(query, parts, mask)

    return run


def _views_of_slabs(lengths: Sequence[int], pools: Sequence[Pool]) -> Run:
    classes: dict[int, list[int]] = {}
    for length in lengths:
        classes.setdefault(_slab(length), []).append(length)
    calls, first = [], 0
    for size, members in classes.items():
        width = _up_to(MULTIPLE, max(members))
        query = torch.randn(len(members), HEADS, SHARED, DIM).bfloat16()
        calls.append((slice(first, first + size * len(members)), size, width, query, _mask(members, width)))
        first += size * len(members)

    def run(plane: int) -> object:
        return [
            _attend(
                query,
                (
                    part[rows].view(-1, size, HEADS, DIM)[:, :width]
                    for part in (pools[plane].keys, pools[plane].values)
                ),
                mask,
            )
            for rows, size, width, query, mask in calls
        ]

    return run


def _tables(lengths: Sequence[int], block: int, rows: int) -> list[list[int]]:
    """Block numbers of each sequence, in no order."""
    blocks = list(range(rows // block))
    random.Random(1).shuffle(blocks)
    return [[blocks.pop() for _ in range(-(-length // block))] for length in lengths]


def _gathered_blocks(lengths: Sequence[int], pools: Sequence[Pool]) -> Run:
    return _gather([list(zip(lengths, _tables(lengths, BLOCK, len(pools[0].keys)), strict=True))], pools)


def _gathered_by_size(lengths: Sequence[int], pools: Sequence[Pool]) -> Run:
    sizes: dict[int, list[tuple[int, list[int]]]] = {}
    for length, table in zip(lengths, _tables(lengths, BLOCK, len(pools[0].keys)), strict=True):
        sizes.setdefault(max(SMALLEST_SIZE, _slab(length)), []).append((length, table))
    return _gather(list(sizes.values()), pools)


def _gather(sizes: Sequence[Sequence[tuple[int, list[int]]]], pools: Sequence[Pool]) -> Run:
    """Sequences, each its length and blocks, of which those of one size are read together."""
    calls = []
    for members in sizes:
        lengths = [length for length, _ in members]
        width = _up_to(MULTIPLE, max(lengths))
        positions = ((table, min(p, length - 1)) for length, table in members for p in range(width))
        slots = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for table, p in positions])
        query = torch.randn(len(members), HEADS, SHARED, DIM).bfloat16()
        calls.append((len(members), width, slots, query, _mask(lengths, width)))
    most = max(len(slots) for _, _, slots, _, _ in calls)
    room = [torch.empty(most, HEADS, DIM, dtype=torch.bfloat16) for _ in range(2)]

    def run(plane: int) -> object:
        found = []
        for count, width, slots, query, mask in calls:
            parts = (
                torch.index_select(part, 0, slots, out=out[: len(slots)]).view(count, width, HEADS, DIM)
                for part, out in zip((pools[plane].keys, pools[plane].values), room, strict=True)
            )
            found.append(_attend(query, parts, mask))
        return found

    return run


def _native(block: int) -> Prepare:
    from seedance_server.engine.kernels.attention import PagedRows, attend_paged, pages_of  # noqa: PLC0415
    from seedance_server.engine.kernels.structures import Reach  # noqa: PLC0415 - where the kernels run

    def prepare(lengths: Sequence[int], pools: Sequence[Pool]) -> Run:
        tables = [_tables(lengths, block, len(pools[0].keys))]
        spans = [(length - 1, 1) for length in lengths]
        rows = PagedRows.of(spans, tables, rings=(None,), block_size=block)
        pages = [pages_of(pool.keys, pool.values) for pool in pools]
        query = torch.randn(len(lengths), HEADS * SHARED, DIM).bfloat16()
        row = torch.randn(len(lengths), HEADS, DIM).bfloat16()
        reach = Reach(0, 0, DIM**-0.5)
        return lambda plane: attend_paged(rows, reach, pages[plane], query, row, row)

    return prepare


def _layouts(pools: Sequence[Pool], small: Sequence[Pool]) -> dict[str, tuple[Prepare, Sequence[Pool]]]:
    """By name what prepares a step, and its planes; ``small`` are those of ordinary pages."""
    layouts: dict[str, tuple[Prepare, Sequence[Pool]]] = {
        "torch slots": (_view_of_slots, pools),
        "torch slabs": (_views_of_slabs, pools),
        "torch paged": (_gathered_blocks, pools),
        "torch paged, by size": (_gathered_by_size, pools),
    }
    try:
        open_library()
    except KernelsMissing as missing:
        print(f"bench kv_layout: without the native kernels: {missing}", file=sys.stderr)
        return layouts
    return layouts | {
        "native slots": (_native(LONGEST), pools),
        "native paged": (_native(BLOCK), pools),
        "native paged, blocks of 64": (_native(4 * BLOCK), pools),
        "native paged, pages of 4 KiB": (_native(BLOCK), small),
    }


def _milliseconds(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Of all layers of a step, median over rounds in which the layouts take turns."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):  # the first one warms up
        for name, run in runs.items():
            began_s = time.perf_counter()
            for plane in range(PLANES):
                run(plane)
            if number:
                spent[name].append((time.perf_counter() - began_s) * LAYERS / PLANES)
    return {name: 1e3 * median(times) for name, times in spent.items()}


def _move_ms(length: int, pool: Pool, rounds: int) -> float:
    """Copying one sequence's rows of all layers to a slab of twice the size."""
    times = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        for part in (pool.keys, pool.values):
            part[length : 2 * length].copy_(part[:length])
        times.append((time.perf_counter() - began_s) * LAYERS)
    return 1e3 * median(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every layout under every workload, and prints tables, and JSON if asked."""
    parser = argparse.ArgumentParser(prog="bench kv_layout", description=__doc__)
    add = parser.add_argument
    add("--sequences", default="1,8,32,64,128", help="in a step (default 1,8,32,64,128)")
    add("--rounds", type=int, default=15, help="of each measurement; the median counts (default 15)")
    add("--threads", type=int, default=2, help="of the processor (default 2)")
    add("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    levels = [int(part) for part in arguments.sequences.split(",")]
    pools = [Pool.of(max(levels) * LONGEST) for _ in range(PLANES)]
    small = [Pool.of(max(levels) * LONGEST, huge_pages=False) for _ in range(PLANES)]
    layouts = _layouts(pools, small)
    records: list[dict[str, Any]] = []
    for workload, length_of in WORKLOADS.items():
        for level in levels:
            dice = random.Random(level)
            lengths = [length_of(number, dice) for number in range(level)]
            with torch.inference_mode():
                runs = {name: prepare(lengths, planes) for name, (prepare, planes) in layouts.items()}
                times = _milliseconds(runs, arguments.rounds)
            waste = {
                layout: sum(reserved_rows(layout, length) for length in lengths) / sum(lengths) - 1
                for layout in LAYOUTS
            }
            records.append({"workload": workload, "sequences": level, "ms": times, "waste": waste})
    moves = {length: _move_ms(length, pools[0], arguments.rounds) for length in (64, 256, 1024)}
    rows = [
        [record["workload"], str(record["sequences"])]
        + [f"{value:.2f}" for value in record["ms"].values()]
        + [f"{value:.0%}" for value in record["waste"].values()]
        for record in records
    ]
    print(
        f"Attention of a decode step, {LAYERS} layers, {arguments.threads} threads, ms; memory beyond rows\n"
    )
    print(markdown_table(["rows", "sequences", *layouts, *(f"{name}: waste" for name in LAYOUTS)], rows))
    print("A move to twice the rows, ms: " + ", ".join(f"{n:,}: {ms:.2f}" for n, ms in moves.items()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"steps": records, "moves_ms": moves}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
