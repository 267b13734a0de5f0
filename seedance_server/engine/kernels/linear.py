"""Linear layers over packed weights: `torch.nn.Linear`'s twins on the kernels.

The weights stand once, in panels (see matmul.h, and int8.h for 8 bits); the layer that they came from is left
without. Each result is a float32 sum in one fixed order, rounded to bfloat16 once: the same bits whatever
rows are beside a row.
"""

import ctypes
from functools import cache

import torch
from attrs import frozen
from torch import Tensor, nn

from seedance_server.engine.kernels.library import open_library
from seedance_server.engine.kernels.structures import Weights
from seedance_server.engine.kernels.weight_memory import WeightMemory

__all__ = ["PackedLinear", "PackedWeights", "threads_handle"]


@cache
def _start_threads(count: int) -> int:
    handle: int = open_library().seedance_threads_start(count)
    return handle


def threads_handle() -> int:
    """The kernels' threads, as many as torch would use on this thread; a process has one set of each size."""
    return _start_threads(torch.get_num_threads())


@frozen(eq=False)
class PackedWeights:
    """A matrix in panels.

    Attributes:
        memory: Keeps what ``structure`` points to.
        structure: For the kernels.
        columns: Outputs.
        width: Inputs.
    """

    memory: WeightMemory
    structure: Weights
    columns: int
    width: int

    @classmethod
    def of(cls, weights: Tensor, memory: WeightMemory) -> "PackedWeights":
        """Pack a bfloat16 matrix [columns, width], which may be forgotten afterwards."""
        columns, width = weights.shape
        weights = weights.detach().contiguous()
        if weights.dtype != torch.bfloat16:
            raise TypeError(f"the kernels multiply bfloat16, not {weights.dtype}")
        structure = Weights(None, columns, width, memory.bits)
        structure.panels = memory.take(memory.library.seedance_packed_bytes(ctypes.addressof(structure)))
        memory.library.seedance_pack(threads_handle(), weights.data_ptr(), ctypes.addressof(structure))
        return cls(memory, structure, columns, width)

    @property
    def panels(self) -> int:
        """Blocks of 32 columns, the last one perhaps not full."""
        return -(-self.columns // 32)

    def multiply(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        *,
        out: Tensor | None = None,
        maxima: Tensor | None = None,
    ) -> Tensor:
        """``x @ weights.T + bias``.

        Args:
            x: [..., width] bfloat16.
            bias: [columns] bfloat16, contiguous.
            out: Where to write [rows, columns]: bfloat16, contiguous.
            maxima: Where to write the greatest number of each panel of each row, NaN if it has one:
                [rows, panels] bfloat16, contiguous.

        Returns:
            [..., columns] bfloat16.
        """
        if x.dtype != torch.bfloat16 or x.shape[-1] != self.width:
            raise ValueError(f"{x.dtype} rows of {x.shape[-1]} for bfloat16 weights of width {self.width}")
        rows = x.reshape(-1, self.width)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        y = rows.new_empty((len(rows), self.columns)) if out is None else out
        for given, shape in ((y, (len(rows), self.columns)), (maxima, (len(rows), self.panels))):
            if given is not None and (
                given.shape != shape or given.dtype != torch.bfloat16 or not given.is_contiguous()
            ):
                raise ValueError(f"{tuple(given.shape)} {given.dtype} is no room for {shape}")
        self.memory.library.seedance_linear(
            threads_handle(),
            *(rows.data_ptr(), len(rows), rows.stride(0)),
            *(ctypes.addressof(self.structure), _pointer(bias)),
            *(y.data_ptr(), self.columns, _pointer(maxima)),
        )
        return y.view(*x.shape[:-1], self.columns)


class PackedLinear(nn.Module):
    """A linear layer over packed weights.

    Args:
        weights: The packed matrix.
        bias: [columns] bfloat16, or None.
    """

    def __init__(self, weights: PackedWeights, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weights = weights
        self.bias = None if bias is None else bias.detach().clone()

    @classmethod
    def of(cls, linear: nn.Linear, memory: WeightMemory) -> "PackedLinear":
        """The twin of ``linear``."""
        return cls(PackedWeights.of(linear.weight, memory), linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to [..., columns], both bfloat16."""
        return self.weights.multiply(x, self.bias)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
