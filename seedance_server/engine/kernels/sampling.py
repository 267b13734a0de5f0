"""The sampler's pass over whole rows of logits, on the kernels."""

import torch
from torch import Tensor

from seedance_server.engine.kernels.library import open_library
from seedance_server.engine.kernels.linear import threads_handle

__all__ = ["block_weights", "can_weigh"]

_PANEL = 32  # of matmul.h


def can_weigh(logits: Tensor) -> bool:
    """Whether `block_weights` reads such logits."""
    return (
        logits.device.type == "cpu"
        and logits.dtype in (torch.bfloat16, torch.float32)
        and logits.stride(1) == 1
    )


def block_weights(logits: Tensor, rows: Tensor, peaks: Tensor, temperatures: Tensor) -> Tensor:
    """The sum of exp((logit - peak) / temperature) over each block of 32 tokens.

    Args:
        logits: ``[any, vocabulary]`` that `can_weigh` takes.
        rows: Int64 ``[n]``: which rows of ``logits``.
        peaks: Float32 ``[n]``: what to subtract, finite.
        temperatures: Float32 ``[n]``, positive.

    Returns:
        Float32 ``[n, blocks]``; each row the same bits whatever the others are.
    """
    if not can_weigh(logits):
        raise ValueError(f"the kernels don't read {logits.dtype} logits on {logits.device}")
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < len(logits):
        raise ValueError(f"there are {len(logits)} rows of logits")
    given = (rows.long().contiguous(), peaks.float().contiguous(), temperatures.float().contiguous())
    if not len(given[0]) == len(given[1]) == len(given[2]):
        raise ValueError("each row has a peak and a temperature")
    columns = logits.shape[1]
    weights = torch.empty(len(rows), -(-columns // _PANEL), dtype=torch.float32)
    open_library().seedance_weigh(
        threads_handle(),
        *(logits.data_ptr(), int(logits.dtype == torch.float32), logits.stride(0), columns),
        *(given[0].data_ptr(), len(rows), given[1].data_ptr(), given[2].data_ptr()),
        weights.data_ptr(),
    )
    return weights
