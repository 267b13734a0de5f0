"""The best that the cores do with memory and with bf16, in a few lines of C++ that do nothing else.

Torch's own sums and products stay far below that, so that a step would seem to beat the machine. Where there
is no compiler, or no bf16 in the processor, they are all there is. Data sheets promise more than two cores of
a shared machine have.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from attrs import frozen

from engine.stopwatch import milliseconds_of
from seedance_server.engine.kernels.compiler import find_compiler
from seedance_server.engine.kernels.library import missing_features

__all__ = ["Machine", "measure_machine"]

SOURCE = Path(__file__).with_name("peaks.cpp")
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-mavx512f", "-mavx512bf16", "-mavx512dq")
# Many times the last cache of any processor, so that each pass comes from memory.
BUFFER_BYTES = 2**30
ROUNDS = 2_000_000
OPERATIONS_PER_ROUND = 16 * 32 * 2
"""Of `peak_multiply`: sixteen instructions of 32 products, each a multiplication and an addition."""
ONE = 0x3F80  # in bf16
# For torch: large enough that a product is all multiplying, small enough for a machine that does so slowly.
SIDE = 2048


@frozen
class Machine:
    """What was measured, all threads together.

    Attributes:
        bytes_per_s: Reading from large pages.
        operations_per_s: Of bf16; a multiplication and an addition are two.
        how: What it was measured with.
    """

    bytes_per_s: float
    operations_per_s: float
    how: str = ""


def measure_machine(threads: int) -> Machine:
    """Read a gigabyte and multiply, with so many threads."""
    # Private: pages that could be shared with another process are never large.
    buffer = mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    numbers = torch.frombuffer(buffer, dtype=torch.float32)
    numbers.fill_(1.0)
    with tempfile.TemporaryDirectory() as directory:
        library = _open_library(Path(directory))
        if library is None:
            return _by_torch(numbers)
        return _by_library(library, numbers, threads)


def _by_torch(numbers: torch.Tensor) -> Machine:
    read_ms = milliseconds_of(numbers.sum)
    square = torch.randn(SIDE, SIDE).bfloat16()
    multiply_ms = milliseconds_of(lambda: square @ square)
    return Machine(4 * len(numbers) / read_ms * 1e3, 2.0 * SIDE**3 / multiply_ms * 1e3, "torch")


def _open_library(directory: Path) -> ctypes.CDLL | None:
    compiler = find_compiler()
    if compiler is None or missing_features():
        return None
    target = directory / "peaks.so"
    subprocess.run([*compiler, *FLAGS, str(SOURCE), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    library.peak_read.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    library.peak_multiply.argtypes = (ctypes.c_int64, ctypes.c_uint16)
    for function in (library.peak_read, library.peak_multiply):
        function.restype = ctypes.c_double
    return library


def _by_library(library: ctypes.CDLL, numbers: torch.Tensor, threads: int) -> Machine:
    part = len(numbers) // threads
    address = numbers.data_ptr()

    with ThreadPoolExecutor(threads) as pool:

        def together(work: Callable[[int], object]) -> Callable[[], object]:
            return lambda: list(pool.map(work, range(threads)))

        read_ms = milliseconds_of(together(lambda n: library.peak_read(address + 4 * n * part, part)))
        multiply_ms = milliseconds_of(together(lambda _n: library.peak_multiply(ROUNDS, ONE)))
    operations = threads * ROUNDS * OPERATIONS_PER_ROUND
    return Machine(4 * threads * part / read_ms * 1e3, operations / multiply_ms * 1e3, "peaks.cpp")
