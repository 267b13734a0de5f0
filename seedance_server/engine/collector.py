"""Keeps Python's garbage collector out of the way, above all while a model is loaded.

A tokenizer's vocabulary and merges are a million small objects that all stay: the collector walks them again
and again, and finds nothing. Reference counts free everything else meanwhile, as always. It knows nothing of
models.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused_collector", "spare_what_is_loaded", "spared_so_far"]

_COLLECT_AFTER = (5_000, 5, 10)
"""New objects before a young collection, and of those before the next older ones. Python's own (700, 10, 10)
took a tenth of the event loop's time at the start of 120 streams, whose objects are walked and stay."""


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


@contextmanager
def spared_so_far() -> Iterator[None]:
    """Collect once; then run the block without the collector looking at what there was before it.

    PyTorch and Transformers are 400,000 objects, and walking them takes 0.3 s each time. Not to be nested.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def spare_what_is_loaded() -> None:
    """Has the collector never look at what there is by now, and from now on more seldom, in all threads.

    A full collection would walk every module and vocabulary: 0.37 s, in which no token leaves.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
