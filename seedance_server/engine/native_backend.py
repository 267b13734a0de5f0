"""The backend that computes with the engine's own CPU kernels.

It takes a bfloat16 model on a processor with AVX-512 and bfloat16 products. The stock model stays: its linear
layers are swapped for twins over packed weights, and what is no plain linear layer is left to torch. Every
kernel adds in one fixed order, so a row's result doesn't depend on the rows beside it, down to a single one.
"""

from typing import Any

import torch
from torch import nn

from seedance_server.engine.backend import TorchBackend
from seedance_server.engine.kernels.library import KernelsMissing, open_library
from seedance_server.engine.kernels.linear import PackedLinear
from seedance_server.engine.kernels.weight_memory import WeightMemory

__all__ = ["NATIVE_REVISION", "NativeBackend", "find_obstacle"]

NATIVE_REVISION = 1
"""To be raised with every change to how a kernel rounds: it is part of the model's fingerprint."""


def find_obstacle(model: Any) -> str | None:
    """Why ``model`` can't be computed with the kernels here, in a few words; None if it can."""
    if model.device.type != "cpu":
        return f"the model is on {model.device.type}"
    if model.dtype != torch.bfloat16:
        return f"they compute bfloat16, the model is {str(model.dtype).removeprefix('torch.')}"
    try:
        open_library()
    except KernelsMissing as missing:
        return str(missing)
    return None


class NativeBackend(TorchBackend):
    """The kernels, and torch for what they don't compute. Only where `find_obstacle` found none."""

    name = f"native-{NATIVE_REVISION}"
    least_rows = 1

    def __init__(self) -> None:
        super().__init__()
        self._memory = WeightMemory(open_library())

    def adopt(self, model: Any) -> None:
        """Swap the model's linear layers for packed ones, one after the other: each original is let go of."""
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
                    setattr(parent, name, PackedLinear.of(child, self._memory))
