"""Reads rows of logits once and answers from blocks: their best tokens, and the weight of all the others.

The vocabulary is cut into blocks of `BLOCK_TOKENS`. A token among the best k sits in a block whose maximum is
among the k best maxima, so after one pass over the logits only k blocks are looked into; a draw over the
whole vocabulary looks into one. Nothing is sorted but what was found. The native kernels
do all this in their own way: `native_sampler.py`.

The invariant: each row's results are the same, bit for bit, whatever its neighbours. It knows nothing of
parameters or randomness.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["BLOCK_TOKENS", "BlockPasses", "best_tokens", "block_tokens"]

BLOCK_TOKENS = 32
"""Tokens in a block. A k of 64 then looks at 2,048 tokens; the width of a head product's tile."""

_ROWS = 8
"""Rows converted to float32 at a time: 8 MiB for a vocabulary of 262,144, which stay in the last cache. All
at once takes half as long again, one by one twice as long (two cores, 32 rows)."""

_LEAST_SCORE, _LEAST_WEIGHT = -87.0, 1.7e-38
"""Below them a weight is 0. The exponential of -inf, or one too small to be a normal number, takes up to
eight times as long."""


class BlockPasses:
    """Passes over whole rows. Keeps its scratch: fresh pages cost as much as the work. Not thread-safe."""

    def __init__(self) -> None:
        self._scratch = torch.empty(0)
        self._copies = torch.empty(0)

    def maxima(self, logits: Tensor) -> Tensor:
        """The greatest logit of each block.

        Args:
            logits: ``[rows, vocabulary]``, any floating dtype.

        Returns:
            Float32 ``[rows, blocks]``; NaN where the block holds one. The last block may be short.
        """
        if logits.dtype == torch.float32 and logits.shape[1] % BLOCK_TOKENS == 0:
            return logits.reshape(len(logits), -1, BLOCK_TOKENS).amax(-1)
        maxima = logits.new_empty((len(logits), _blocks(logits)), dtype=torch.float32)
        for start in range(0, len(logits), _ROWS):
            rows = slice(start, start + _ROWS)
            torch.amax(self._load(logits[rows]), -1, out=maxima[rows])
        return maxima

    def weights(self, logits: Tensor, rows: Sequence[int], peaks: Tensor, temperatures: Tensor) -> Tensor:
        """The sum of exp((logit - peak) / temperature) over each block.

        Args:
            logits: ``[any, vocabulary]``, any floating dtype.
            rows: Which rows of ``logits``; one may be named twice.
            peaks: Float32 ``[len(rows)]``: what to subtract, finite.
            temperatures: Float32 ``[len(rows)]``, positive.

        Returns:
            Float32 ``[len(rows), blocks]``.
        """
        weights = logits.new_empty((len(rows), _blocks(logits)), dtype=torch.float32)
        for start in range(0, len(rows), _ROWS):
            some = slice(start, start + _ROWS)
            values = self._load(_take(logits, rows[some]))
            values.sub_(peaks[some, None, None]).div_(temperatures[some, None, None])
            torch.threshold_(values.clamp_(min=_LEAST_SCORE).exp_(), _LEAST_WEIGHT, 0.0)
            torch.sum(values, -1, out=weights[some])
        return weights

    def copy(self, logits: Tensor, rows: Sequence[int], allowed: Sequence[Tensor | None]) -> Tensor:
        """Rows in float32, to be changed.

        Args:
            logits: ``[any, vocabulary]``, any floating dtype.
            rows: Which rows of ``logits``.
            allowed: For each a bool ``[vocabulary]`` on the CPU, or None: all other tokens become -inf.

        Returns:
            Float32 ``[len(rows), vocabulary]``, overwritten by the next call.
        """
        copies = self._room_for_copies(logits, len(rows))
        for copy, row, some in zip(copies, rows, allowed, strict=True):
            if some is None:
                copy.copy_(logits[row])
            else:  # the lesser of inf and a logit, or of -inf: filling by a mask takes three times as long
                copy.copy_(some.view(torch.uint8)).sub_(0.5).mul_(torch.inf)
                torch.minimum(copy, logits[row], out=copy)
        return copies

    def _room_for_copies(self, logits: Tensor, rows: int) -> Tensor:
        size = rows * logits.shape[1]
        if self._copies.numel() < size or self._copies.device != logits.device:
            self._copies = logits.new_empty(size, dtype=torch.float32)
        return self._copies[:size].view(rows, -1)

    def _load(self, rows: Tensor) -> Tensor:
        """Copy ``rows``: [len(rows), blocks, BLOCK_TOKENS], until the next call."""
        width = _blocks(rows) * BLOCK_TOKENS
        if self._scratch.numel() < len(rows) * width or self._scratch.device != rows.device:
            self._scratch = rows.new_empty(len(rows) * width, dtype=torch.float32)
        room = self._scratch[: len(rows) * width].view(len(rows), width)
        room[:, : rows.shape[1]] = rows
        room[:, rows.shape[1] :] = -torch.inf
        return room.view(len(rows), -1, BLOCK_TOKENS)


def block_tokens(logits: Tensor, rows: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Look into some blocks of some rows.

    Args:
        logits: ``[any, vocabulary]``.
        rows: Int64 ``[rows]``: which rows of ``logits``.
        blocks: Int64 ``[rows, n]``.

    Returns:
        Ids and float32 logits ``[rows, n * BLOCK_TOKENS]``; beyond the vocabulary -inf.
    """
    inside = torch.arange(BLOCK_TOKENS, device=logits.device)
    ids = (blocks[..., None] * BLOCK_TOKENS + inside).flatten(1)
    last = logits.shape[1] - 1
    values = logits[rows[:, None], ids.clamp(max=last)].float()
    return ids, values.masked_fill_(ids > last, -torch.inf)


def best_tokens(logits: Tensor, rows: Tensor, maxima: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` greatest logits of some rows, best first, the lower id first among equals.

    Which of several equals of the last one are among them is left open.

    Args:
        logits: ``[any, vocabulary]``.
        rows: Int64 ``[rows]``: which rows of ``logits``.
        maxima: The `BlockPasses.maxima` of ``logits``.
        count: At most the vocabulary.

    Returns:
        Float32 values and int64 ids, ``[rows, count]``.
    """
    if count < maxima.shape[1]:
        blocks = torch.topk(maxima[rows].float(), count, sorted=False).indices
        ids, values = block_tokens(logits, rows, blocks)
    else:
        values = logits[rows].float()
        ids = torch.arange(logits.shape[1], device=logits.device).expand(values.shape)
    if count < values.shape[1]:
        found = torch.topk(values, count, sorted=False)
        ids, values = ids.gather(1, found.indices), found.values
    by_id = ids.sort(dim=1)
    order = values.gather(1, by_id.indices).sort(dim=1, descending=True, stable=True)
    return order.values, by_id.values.gather(1, order.indices)


def _blocks(logits: Tensor) -> int:
    return -(-logits.shape[1] // BLOCK_TOKENS)


def _take(logits: Tensor, rows: Sequence[int]) -> Tensor:
    first = rows[0]
    if list(rows) == list(range(first, first + len(rows))):
        return logits[first : first + len(rows)]  # a view, where the rows stand side by side
    return logits[torch.tensor(rows, device=logits.device)]
