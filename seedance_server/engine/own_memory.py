"""Gives the weights that a model keeps memory of their own, on large pages.

A checkpoint is mapped, and a weight that was read from it is a view of that mapping: as long as one is left,
all of the file counts as this process's memory, beside whatever was made of it. And what lies in the page
cache counts as free, though nobody could run without it: the KV pool would take its room. So whoever takes a
model over ends with `own_weights`, and loading ends with `return_memory`. It knows nothing of what the
weights mean.
"""

import ctypes
import gc
from itertools import chain
from typing import Any

import torch

from seedance_server.engine.huge_pages import prefer_huge_pages

__all__ = ["own_weights", "return_memory"]


@torch.inference_mode()
def own_weights(model: Any) -> None:
    """Copy each of ``model``'s weights on the CPU, one after the other.

    Args:
        model: A Transformers model; weights that several modules share are still shared afterwards.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.device.type == "cpu":
            own = torch.empty_like(tensor.data, memory_format=torch.contiguous_format)
            prefer_huge_pages(own)
            tensor.data = own.copy_(tensor.data)


def return_memory() -> None:
    """Give what loading has left behind back to the system, which the allocator would keep for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
