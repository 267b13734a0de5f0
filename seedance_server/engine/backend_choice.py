"""Decides what computes a model: one place, one line in the log that says which and why."""

from collections.abc import Callable
from typing import Any

from seedance_server.engine.backend import Backend, TorchBackend
from seedance_server.engine.config import KernelsName
from seedance_server.engine.errors import KernelsUnavailable
from seedance_server.engine.native_backend import NativeBackend, find_obstacle
from seedance_server.engine.native_decoder import find_decoder_obstacle

__all__ = ["choose_backend"]


def choose_backend(
    model: Any, kernels: KernelsName = "auto", progress: Callable[[str], None] = lambda _line: None
) -> Backend:
    """The fastest backend that runs this model on this machine.

    Args:
        model: In its final dtype and place.
        kernels: "torch" or "native" to have no choice; "auto" takes the native kernels where they run.
        progress: Told which backend it is, and why.

    Raises:
        KernelsUnavailable: "native", and they don't run here.
    """
    if kernels == "torch":
        progress("computing with PyTorch's kernels, as asked for")
        return TorchBackend()
    obstacle = find_obstacle(model)
    if obstacle is None:
        rest = find_decoder_obstacle(model)
        whole = "the whole decoder" if rest is None else f"linear layers and attention alone, since {rest}"
        progress(f"computing with the native kernels: {whole}")
        return NativeBackend()
    if kernels == "native":
        raise KernelsUnavailable(obstacle)
    progress(f"computing with PyTorch's kernels; not with the native ones, since {obstacle}")
    return TorchBackend()
