"""What the machine could do at best: how fast it reads memory and multiplies, measured where a step runs.

A decode step reads every weight once and multiplies each row with it, so it can't take less than the greater
of the two times. Both rates are measured: data sheets promise more than two cores of a shared machine have.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from statistics import median

import torch
from attrs import frozen

__all__ = ["Machine", "Products", "floor_ms", "measure_machine", "milliseconds_of"]

# Many times the last cache of any processor, so that each pass comes from memory.
BUFFER_BYTES = 2**30
# Large enough that a product is all multiplying, small enough for a machine that multiplies slowly.
SIDE = 2048
REPEATS = 5


@frozen
class Machine:
    """What was measured.

    Attributes:
        bytes_per_s: Reading from large pages, all threads together.
        operations_per_s: Of a large bf16 product in torch; a multiplication and an addition are two.
    """

    bytes_per_s: float
    operations_per_s: float


@frozen
class Products:
    """The matrix products of a decoder's step: `(columns, width)` of each, layer by layer, the head last."""

    shapes: tuple[tuple[int, int], ...]

    @property
    def weights(self) -> int:
        """Numbers in all the matrices."""
        return sum(columns * width for columns, width in self.shapes)

    @classmethod
    def of(cls, config: object) -> Products:
        """Read them from the configuration of a Transformers model with the usual decoder."""
        hidden: int = config.hidden_size  # type: ignore[attr-defined]
        inner: int = config.intermediate_size  # type: ignore[attr-defined]
        heads: int = config.num_attention_heads  # type: ignore[attr-defined]
        shared: int = config.num_key_value_heads  # type: ignore[attr-defined]
        size: int = getattr(config, "head_dim", None) or hidden // heads
        layer = (
            ((heads + 2 * shared) * size, hidden),
            (hidden, heads * size),
            (2 * inner, hidden),
            (hidden, inner),
        )
        layers: int = config.num_hidden_layers  # type: ignore[attr-defined]
        vocabulary: int = config.vocab_size  # type: ignore[attr-defined]
        return cls((*layer * layers, (vocabulary, hidden)))


def milliseconds_of(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of some work, after one pass that doesn't count."""
    work()
    times = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return 1e3 * median(times)


def measure_machine() -> Machine:
    """Read a gigabyte and multiply large bf16 matrices, with torch's threads."""
    # Private: pages that could be shared with another process are never large.
    buffer = mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    numbers = torch.frombuffer(buffer, dtype=torch.float32)
    numbers.fill_(1.0)
    read_ms = milliseconds_of(numbers.sum)
    square = torch.randn(SIDE, SIDE).bfloat16()
    multiply_ms = milliseconds_of(lambda: square @ square)
    return Machine(BUFFER_BYTES / read_ms * 1e3, 2.0 * SIDE**3 / multiply_ms * 1e3)


def floor_ms(machine: Machine, products: Products, rows: int) -> float:
    """Return the least time of the products of a step of so many rows, in ms."""
    reading = 2.0 * products.weights / machine.bytes_per_s
    multiplying = 2.0 * rows * products.weights / machine.operations_per_s
    return 1e3 * max(reading, multiplying)
