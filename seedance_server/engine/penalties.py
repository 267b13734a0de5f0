"""Changes rows of logits by what their own sequences hold and their requests ask: penalties, biases, bans.

The order is that of vLLM: repetition penalty, presence and frequency penalty, ``logit_bias``, bans. Each
row's result depends on that row alone; each kind is applied to all rows at once. Costs O(prompt + output)
per token for rows with a penalty, nothing for others; the choice of a token from the result is the business
of `sampler.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from seedance_server.engine.sampling_params import SamplingParams

__all__ = ["Adjusted", "adjust_logits", "is_adjusted"]


class Adjusted(Protocol):
    """What must be known of a row."""

    @property
    def params(self) -> SamplingParams:
        """The request's parameters."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Ids of the prompt; count for the repetition penalty only."""

    @property
    def output_ids(self) -> Sequence[int]:
        """Ids generated so far; count for all three penalties."""

    @property
    def banned_ids(self) -> Sequence[int]:
        """Ids that can't be chosen now, e.g. end tokens before ``min_tokens``."""


def is_adjusted(params: SamplingParams, banned_ids: Sequence[int]) -> bool:
    """Whether `adjust_logits` would do anything."""
    return bool(
        params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or banned_ids
    )


def adjust_logits(logits: Tensor, rows: Sequence[Adjusted], upload: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies the penalties, biases and bans of some requests.

    Args:
        logits: Float32 ``[len(rows), vocab_size]``, contiguous, changed in place.
        rows: One per row of ``logits``.
        upload: Brings a tensor to where ``logits`` are.

    Returns:
        Int64 ``[any]``: where something was changed, as places in the flattened logits; some twice.
    """
    flat = logits.view(-1)
    repeated, penalised, biased, banned = (_Places(logits.shape[1], upload) for _ in range(4))
    for line, row in enumerate(rows):
        params, output_ids = row.params, row.output_ids
        if params.repetition_penalty != 1:
            repeated.add(line, {*row.prompt_ids, *output_ids}, params.repetition_penalty)
        if (params.presence_penalty or params.frequency_penalty) and output_ids:
            counts = Counter(output_ids)
            presence, frequency = params.presence_penalty, params.frequency_penalty
            penalised.add(line, counts, *(presence + frequency * times for times in counts.values()))
        if params.logit_bias:
            biased.add(line, params.logit_bias, *params.logit_bias.values())
        if row.banned_ids:
            banned.add(line, row.banned_ids, 0.0)
    seen_at, divisors = repeated.tensors()
    scores = flat[seen_at]
    flat[seen_at] = torch.where(scores < 0, scores * divisors, scores / divisors)
    penalised_at, penalties = penalised.tensors()
    flat[penalised_at] -= penalties
    biased_at, biases = biased.tensors()
    flat[biased_at] += biases
    banned_at, _ = banned.tensors()
    flat[banned_at] = -torch.inf
    return torch.cat([seen_at, penalised_at, biased_at, banned_at])


class _Places:
    """Places in flattened logits, each with a number, none twice."""

    def __init__(self, vocab_size: int, upload: Callable[[Tensor], Tensor]) -> None:
        self._vocab_size = vocab_size
        self._upload = upload
        self._places: list[int] = []
        self._numbers: list[float] = []

    def add(self, line: int, token_ids: Iterable[int], *numbers: float) -> None:
        """Tokens of a line, and a number for each, or one for all."""
        first = line * self._vocab_size
        before = len(self._places)
        self._places += [first + token_id for token_id in token_ids]
        self._numbers += numbers * (len(self._places) - before) if len(numbers) == 1 else numbers

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Int64 places and float32 numbers."""
        return (
            self._upload(torch.tensor(self._places, dtype=torch.long)),
            self._upload(torch.tensor(self._numbers, dtype=torch.float32)),
        )
