"""Asks the system for large pages under a tensor that is read all over: a page's address is looked up less.

A wish, never a need: where the system doesn't know of it, or has no such pages, all is as before.
"""

import ctypes
import mmap
from functools import cache
from typing import Any

from torch import Tensor

__all__ = ["prefer_huge_pages"]


def prefer_huge_pages(tensor: Tensor) -> None:
    """Wish for large pages under what nobody has touched yet of ``tensor``; only in the host's memory.

    Args:
        tensor: Contiguous.
    """
    advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux
    if advice is None or tensor.device.type != "cpu":
        return
    page = mmap.PAGESIZE
    start = -(-tensor.data_ptr() // page) * page
    length = (tensor.data_ptr() + tensor.nbytes) // page * page - start
    if length > 0:
        _madvise()(start, length, advice)  # whether it heeds this is the system's business


@cache
def _madvise() -> Any:
    call = ctypes.CDLL(None).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return call
