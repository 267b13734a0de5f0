"""Changes rows of logits by what their own sequences hold and their requests ask: penalties, biases, bans.

The order is that of vLLM: repetition penalty, presence and frequency penalty, ``logit_bias``, bans. Each
row's result depends on that row alone; each kind is applied to all rows at once. Costs a few operations per
token that prompt and output hold, for rows with a penalty; nothing for others. The choice of a token from the
result is the business of `sampler.py`.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.token_history import TokenCounts

__all__ = ["Adjusted", "adjust_logits", "is_adjusted", "is_penalised"]


class Adjusted(Protocol):
    """What must be known of a row."""

    @property
    def params(self) -> SamplingParams:
        """The request's parameters."""

    @property
    def counts(self) -> TokenCounts | None:
        """Its tokens: the prompt's count for the repetition penalty only. Needed where `is_penalised`."""

    @property
    def banned_ids(self) -> Sequence[int]:
        """Ids that can't be chosen now, e.g. end tokens before ``min_tokens``."""


def is_penalised(params: SamplingParams) -> bool:
    """Whether a request has a penalty, so that its tokens must be counted."""
    return params.repetition_penalty != 1 or bool(params.presence_penalty or params.frequency_penalty)


def is_adjusted(params: SamplingParams, banned_ids: Sequence[int]) -> bool:
    """Whether `adjust_logits` would do anything."""
    return is_penalised(params) or bool(params.logit_bias or banned_ids)


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
        params, counts = row.params, row.counts
        if counts is not None and params.repetition_penalty != 1:
            repeated.add(line, counts.seen, torch.tensor(params.repetition_penalty))
        if counts is not None and (params.presence_penalty or params.frequency_penalty):
            times = _tensor(counts.times).double()
            penalised.add(line, counts.said, times * params.frequency_penalty + params.presence_penalty)
        if params.logit_bias:
            biased.add(line, params.logit_bias, torch.tensor(list(params.logit_bias.values())))
        if row.banned_ids:
            banned.add(line, row.banned_ids, torch.tensor(0.0))
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
        self._lines, self._counts = [0], [0]
        self._ids = [torch.empty(0, dtype=torch.int32)]
        self._numbers = [torch.empty(0)]

    def add(self, line: int, token_ids: Iterable[int], numbers: Tensor) -> None:
        """Tokens of a line, and a number for each, or one for all; they must not change before `tensors`."""
        ids = _tensor(token_ids if isinstance(token_ids, array) else array("i", token_ids))
        self._lines.append(line)
        self._counts.append(len(ids))
        self._ids.append(ids)
        self._numbers.append(numbers.float().expand(len(ids)))

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Int64 places and float32 numbers; a token beyond the vocabulary has none, not the next line's."""
        ids, numbers = torch.cat(self._ids), torch.cat(self._numbers)
        starts = torch.tensor(self._lines) * self._vocab_size
        places = starts.repeat_interleave(torch.tensor(self._counts)).add_(ids)
        exist = ids < self._vocab_size
        if not exist.all():  # rare, and dear
            places, numbers = places[exist], numbers[exist]
        return self._upload(places), self._upload(numbers)


def _tensor(numbers: "array[int]") -> Tensor:
    """The same memory; not to be kept, for an array that grows gives it away."""
    return torch.frombuffer(numbers, dtype=torch.int32) if numbers else torch.empty(0, dtype=torch.int32)
