"""The sampler's passes over whole rows of logits, on the kernels."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from seedance_server.engine.kernels.library import open_library
from seedance_server.engine.kernels.linear import threads_handle

__all__ = ["block_weights", "can_read", "copy_rows"]

_PANEL = 32  # of matmul.h


def can_read(logits: Tensor) -> bool:
    """Whether the kernels read such logits."""
    return (
        logits.device.type == "cpu"
        and logits.dtype in (torch.bfloat16, torch.float32)
        and logits.stride(1) == 1
    )


def block_weights(logits: Tensor, rows: Tensor, peaks: Tensor, temperatures: Tensor) -> Tensor:
    """The sum of exp((logit - peak) / temperature) over each block of 32 tokens.

    Args:
        logits: ``[any, vocabulary]`` that `can_read` takes.
        rows: Int64 ``[n]``: which rows of ``logits``.
        peaks: Float32 ``[n]``: what to subtract, finite.
        temperatures: Float32 ``[n]``, positive.

    Returns:
        Float32 ``[n, blocks]``; each row the same bits whatever the others are.
    """
    if not len(rows) == len(peaks) == len(temperatures):
        raise ValueError("each row has a peak and a temperature")
    rows, peaks, temperatures = rows.contiguous(), peaks.contiguous(), temperatures.contiguous()
    weights = torch.empty(len(rows), -(-logits.shape[1] // _PANEL), dtype=torch.float32)
    open_library().seedance_weigh(
        threads_handle(),
        *_read(logits, rows),
        *(peaks.data_ptr(), temperatures.data_ptr(), weights.data_ptr()),
    )
    return weights


def copy_rows(
    logits: Tensor, rows: Tensor, allowed: Sequence[Tensor | None], copies: Tensor, maxima: Tensor
) -> None:
    """Copy rows into float32, with -inf for tokens that aren't allowed.

    Args:
        logits: ``[any, vocabulary]`` that `can_read` takes.
        rows: Int64 ``[n]``: which rows of ``logits``.
        allowed: For each a bool ``[vocabulary]``, or None for all tokens.
        copies: Float32 ``[n, vocabulary]``, contiguous: where to.
        maxima: Float32 ``[n, blocks]``, contiguous: gets the greatest of each block of 32, NaN if it has one.
    """
    blocks = -(-logits.shape[1] // _PANEL)
    for given, shape in ((copies, (len(rows), logits.shape[1])), (maxima, (len(rows), blocks))):
        if given.shape != shape or given.dtype != torch.float32 or not given.is_contiguous():
            raise ValueError(f"{tuple(given.shape)} {given.dtype} is no room for {shape}")
    masks = [None if each is None else each.contiguous() for each in allowed]
    if len(masks) != len(rows) or any(
        each is not None and (each.dtype != torch.bool or each.shape != logits.shape[1:]) for each in masks
    ):
        raise ValueError("what is allowed is said for each row and token, or for none of a row's")
    pointers = (ctypes.c_void_p * len(masks))(*(None if each is None else each.data_ptr() for each in masks))
    open_library().seedance_copy(
        threads_handle(),
        *_read(logits, rows.contiguous()),
        *(ctypes.addressof(pointers), copies.data_ptr(), maxima.data_ptr()),
    )


def _read(logits: Tensor, rows: Tensor) -> tuple[int, ...]:
    """What the kernels are told of rows of logits; ``rows`` must live as long as they read."""
    if not can_read(logits):
        raise ValueError(f"the kernels don't read {logits.dtype} logits on {logits.device}")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(logits):
        raise ValueError(f"there are {len(logits)} rows of logits")
    wide = int(logits.dtype == torch.float32)
    return logits.data_ptr(), wide, logits.stride(0), logits.shape[1], rows.data_ptr(), len(rows)
