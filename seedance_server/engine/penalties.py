"""Changes one row of logits by what its own sequence holds and its request asks: penalties, biases, bans.

The order is that of vLLM: repetition penalty, presence and frequency penalty, ``logit_bias``, bans. Each
depends on this row alone. Costs O(prompt + output) per token for rows with a penalty, nothing for others;
the choice of a token from the result is the business of `sampler.py`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from seedance_server.engine.sampling_params import SamplingParams

__all__ = ["adjust_logits", "is_adjusted"]


def is_adjusted(params: SamplingParams, banned_ids: Sequence[int]) -> bool:
    """Whether `adjust_logits` would do anything."""
    return bool(
        params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or banned_ids
    )


def adjust_logits(
    logits: Tensor,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    banned_ids: Sequence[int],
) -> None:
    """Applies the penalties, biases and bans of one request.

    Args:
        logits: Float32 ``[vocab_size]``, changed in place.
        params: The request's parameters.
        prompt_ids: Ids of the prompt; count for the repetition penalty only.
        output_ids: Ids generated so far; count for all three penalties.
        banned_ids: Ids that can't be chosen now, e.g. end tokens before ``min_tokens``.
    """
    if params.repetition_penalty != 1:
        seen = _indices(logits, {*prompt_ids, *output_ids})
        scores = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)
    if (params.presence_penalty or params.frequency_penalty) and output_ids:
        counts = Counter(output_ids)
        times = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
        logits[_indices(logits, counts)] -= params.presence_penalty + params.frequency_penalty * times
    if params.logit_bias:
        bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=logits.device)
        logits[_indices(logits, params.logit_bias)] += bias
    if banned_ids:
        logits[_indices(logits, banned_ids)] = -torch.inf


def _indices(logits: Tensor, token_ids: Iterable[int]) -> Tensor:
    return torch.tensor(list(token_ids), dtype=torch.long, device=logits.device)
