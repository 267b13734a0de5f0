"""Decides what computes a model: one place, and says which and why."""

from typing import Any

from seedance_server.engine.backend import Backend, TorchBackend
from seedance_server.engine.config import KernelsName, QuantizeName
from seedance_server.engine.errors import KernelsUnavailable, QuantizeUnavailable
from seedance_server.engine.native_backend import NativeBackend, find_obstacle
from seedance_server.engine.native_decoder import find_decoder_obstacle

__all__ = ["choose_backend"]


def choose_backend(
    model: Any, kernels: KernelsName = "auto", quantize: QuantizeName = "none"
) -> tuple[Backend, str]:
    """The fastest backend that runs this model on this machine.

    Args:
        model: In its final dtype and place.
        kernels: "torch" or "native" to have no choice; "auto" takes the native kernels where they run.
        quantize: "int8" for weights of 8 bits, which only the native kernels multiply.

    Returns:
        The backend; and which it is, and why, in words.

    Raises:
        KernelsUnavailable: "native", and they don't run here.
        QuantizeUnavailable: "int8", and they don't run here, aren't to, or can't multiply it.
    """
    if kernels == "torch":
        if quantize != "none":
            raise QuantizeUnavailable(quantize, "--kernels torch asks for others")
        return TorchBackend(), "PyTorch's kernels, as asked for"
    obstacle = find_obstacle(model, quantize)
    if obstacle is not None and quantize != "none":
        raise QuantizeUnavailable(quantize, obstacle)
    if obstacle is None:
        rest = find_decoder_obstacle(model)
        whole = "the whole decoder" if rest is None else f"linear layers and attention alone, since {rest}"
        weights = "" if quantize == "none" else f", its weights as {quantize}"
        return NativeBackend(quantize), f"the native kernels: {whole}{weights}"
    if kernels == "native":
        raise KernelsUnavailable(obstacle)
    return TorchBackend(), f"PyTorch's kernels; not with the native ones, since {obstacle}"
