"""Choosing tokens from rows of logits, on the kernels."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from seedance_server.engine.kernels.library import open_library
from seedance_server.engine.kernels.linear import threads_handle
from seedance_server.engine.kernels.structures import MOST_REPORTED, Choice, Logits, Request

__all__ = ["can_read", "choose"]

_PANEL = 32  # of matmul.h


def can_read(logits: Tensor) -> bool:
    """Whether the kernels read such logits."""
    return (
        logits.device.type == "cpu"
        and logits.dtype in (torch.bfloat16, torch.float32)
        and logits.stride(1) == 1
    )


def choose(logits: Tensor, requests: Sequence[Request], maxima: Tensor | None = None) -> list[Choice]:
    """Choose a token for each request.

    Args:
        logits: ``[any, vocabulary]`` that `can_read` takes.
        requests: What each wants of which row, at most `MOST_REPORTED` tokens reported. What they point to
            must be there: arrays as long as they say, and as many flags of allowed tokens as the vocabulary
            has. Ids beyond it are left out.
        maxima: Bfloat16 ``[rows of logits, blocks]``, contiguous: the greatest of each block of 32, NaN if it
            has one; None if that isn't known.

    Returns:
        One for each; the same bits whatever the others are.

    Raises:
        ValueError: The kernels would read or write beyond what there is.
    """
    if not can_read(logits):
        raise ValueError(f"the kernels don't read {logits.dtype} logits on {logits.device}")
    rows, vocabulary = logits.shape
    most = min(vocabulary, MOST_REPORTED)
    if not all(0 <= request.row < rows and request.reported <= most for request in requests):
        raise ValueError(f"there are {rows} rows of {vocabulary} logits, and {most} can be reported")
    if any(request.temperature > 0 and request.top_k < 1 for request in requests):
        raise ValueError("no token is left to draw")
    if maxima is not None and (
        maxima.shape != (rows, -(-vocabulary // _PANEL))
        or maxima.dtype != torch.bfloat16
        or not maxima.is_contiguous()
    ):
        raise ValueError(f"{tuple(maxima.shape)} {maxima.dtype} are no maxima of {rows} rows")
    given = Logits(
        logits.data_ptr(),
        logits.stride(0),
        vocabulary,
        None if maxima is None else maxima.data_ptr(),
        logits.dtype == torch.float32,
    )
    wanted, choices = (Request * len(requests))(*requests), (Choice * len(requests))()
    open_library().seedance_choose(
        threads_handle(),
        ctypes.addressof(given),
        ctypes.addressof(wanted),
        len(wanted),
        ctypes.addressof(choices),
    )
    return list(choices)
