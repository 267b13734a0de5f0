"""How many of a row's best tokens top_k, then top_p, then min_p leave: all rows of a batch at once.

Ties at the edge of top_k and min_p are all kept, as Transformers does; top_p stops amid a tie, the lower ids
first. A row's best tokens may be too few to tell: then that is the answer, never a guess. The invariant: each
row's answer is its own, whatever its neighbours. It knows no ids and no randomness.
"""

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from attrs import frozen
from torch import Tensor

from seedance_server.engine.sampling_params import SamplingParams

__all__ = ["Truncation", "is_truncated", "top_k_of"]


def is_truncated(params: SamplingParams, vocab_size: int) -> bool:
    """Whether the parameters leave anything out."""
    return top_k_of(params, vocab_size) < vocab_size or params.top_p < 1 or bool(params.min_p)


def top_k_of(params: SamplingParams, vocab_size: int) -> int:
    """How many tokens top_k leaves, ties apart; the vocabulary where there is no such bound."""
    return params.top_k if 0 < params.top_k < vocab_size else vocab_size


@frozen(eq=False)
class Truncation:
    """The bounds of some rows, as tensors ``[rows]`` on the logits' device.

    Attributes:
        vocab_size: Tokens in a row.
        top_k: Int64; the vocabulary where there is no such bound.
        top_p: Float64; 1 where there is no such bound.
        min_p: Float64, natural logarithm; -inf where there is no such bound.
    """

    vocab_size: int
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], vocab_size: int, upload: Callable[[Tensor], Tensor]
    ) -> Self:
        """The bounds that requests ask for, one row each; ``upload`` brings them to where the logits are."""

        def doubles(numbers: list[float]) -> Tensor:
            return upload(torch.tensor(numbers, dtype=torch.float64))

        return cls(
            vocab_size,
            upload(torch.tensor([top_k_of(each, vocab_size) for each in params])),
            doubles([min(each.top_p, 1.0) for each in params]),
            doubles([math.log(each.min_p) if each.min_p else -math.inf for each in params]),
        )

    def needs_total(self, params: SamplingParams) -> bool:
        """Whether `count` reads the total of a row with these parameters."""
        return params.top_p < 1 and top_k_of(params, self.vocab_size) == self.vocab_size

    def count(self, scores: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        """How many tokens are left.

        Args:
            scores: Float32 ``[rows, n]``: the n greatest logits over their temperature, best first, less the
                first, which is 0 therefore.
            totals: Float64 ``[rows]``: the sum of exp(score) over the whole vocabulary; read where top_p is
                the first bound.

        Returns:
            Int64 counts ``[rows]``, at least 1, and booleans ``[rows]``: False where it takes more than n
            tokens to tell.
        """
        seen = scores.shape[1]
        edge = scores.gather(1, (self.top_k - 1).clamp(max=seen - 1)[:, None])
        has_top_k = self.top_k < self.vocab_size
        within = (scores >= edge) | ~has_top_k[:, None]
        counts = within.sum(1)
        decided = (counts < seen) | ~has_top_k
        weights = torch.exp(scores.double()) * within
        up_to = weights.cumsum(1)
        totals = torch.where(has_top_k, up_to[:, -1], totals)
        nucleus = (up_to - weights < (totals * self.top_p)[:, None]).sum(1)
        counts = torch.where(self.top_p < 1, torch.minimum(counts, nucleus), counts)
        counts = torch.minimum(counts, (scores >= self.min_p[:, None]).sum(1)).clamp_(min=1)
        if seen < self.vocab_size:
            # The last one kept must be better than the last one seen: else an equal of it is out of sight.
            return counts, decided & (scores.gather(1, counts[:, None] - 1)[:, 0] > scores[:, -1])
        return counts, torch.ones_like(decided)
