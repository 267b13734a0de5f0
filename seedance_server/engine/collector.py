"""Keeps Python's garbage collector out of the way while a model is loaded.

A tokenizer's vocabulary and merges are a million small objects that all stay: the collector walks them again
and again, and finds nothing. Reference counts free everything else meanwhile, as always. It knows nothing of
models.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused_collector"]


@contextmanager
def paused_collector() -> Iterator[None]:
    """Run the block without cyclic garbage collection, in all threads; then put it back as it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
