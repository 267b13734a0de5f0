"""Finds the best tokens of rows of logits without sorting the vocabulary: exact, in two levels.

The vocabulary is cut into blocks of `BLOCK_TOKENS`. A token among the best k sits in a block whose maximum is
among the k best maxima, so after one pass over the logits only k blocks are looked into. The first pass is a
function of its own, for a backend whose head product knows the maxima already may bring them along.
It knows nothing of parameters or randomness.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["BLOCK_TOKENS", "block_maxima"]

BLOCK_TOKENS = 32
"""Tokens in a block. A k of 64 then looks at 2,048 tokens; the width of a head product's tile."""


def block_maxima(logits: Tensor) -> Tensor:
    """The first level.

    Args:
        logits: ``[rows, vocabulary]``, any floating dtype.

    Returns:
        ``[rows, ceil(vocabulary / BLOCK_TOKENS)]`` in the same dtype: the greatest logit of each block, NaN
        where the block holds one.
    """
    rest = -logits.shape[1] % BLOCK_TOKENS
    padded = pad(logits, (0, rest), value=-torch.inf) if rest else logits
    return padded.unflatten(1, (-1, BLOCK_TOKENS)).amax(-1)
