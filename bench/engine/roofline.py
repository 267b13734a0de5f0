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
REPEATS = 5


@frozen
class Machine:
    """What was measured.

    Attributes:
        bytes_per_s: Reading from large pages, all threads together.
        operations_per_s: Of the best bf16 product that torch has for a batch, a product and a sum being two.
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


def measure_machine(rows: int, columns: int, width: int) -> Machine:
    """Read a gigabyte and multiply bf16 matrices of this shape, with torch's threads."""
    buffer = mmap.mmap(-1, BUFFER_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    numbers = torch.frombuffer(buffer, dtype=torch.int64)
    numbers.fill_(1)
    read_ms = milliseconds_of(numbers.sum)
    weights = torch.randn(columns, width).bfloat16()
    x = torch.randn(rows, width).bfloat16()
    multiply_ms = milliseconds_of(lambda: torch.nn.functional.linear(x, weights))
    return Machine(BUFFER_BYTES / read_ms * 1e3, 2.0 * rows * columns * width / multiply_ms * 1e3)


def floor_ms(machine: Machine, products: Products, rows: int) -> float:
    """Return the least time of the products of a step of so many rows, in ms."""
    reading = 2.0 * products.weights / machine.bytes_per_s
    multiplying = 2.0 * rows * products.weights / machine.operations_per_s
    return 1e3 * max(reading, multiplying)
