"""Chooses tokens on the CPU kernels: the same rules as `sampler.py`, all rows and parameters in one call.

The invariant: what a row gets is what the sampler in torch would give it, but for rounding, and depends on
nothing beside it. It gives the kernels addresses; what lies there lives until they return.
"""

from array import array
from collections.abc import Sequence
from math import inf, isfinite, log

import torch
from torch import Tensor

from seedance_server.engine.kernels.sampling import can_read, choose
from seedance_server.engine.kernels.structures import Choice, Request
from seedance_server.engine.philox import uniform
from seedance_server.engine.sampler import (
    FAILED_ID,
    RowLogprobs,
    SampledTokens,
    Sampler,
    SamplingRow,
    nothing_left,
    unusable,
)
from seedance_server.engine.truncation import top_k_of

__all__ = ["HeadMaxima", "NativeSampler"]


class HeadMaxima:
    """The maxima of the logits that were computed last: the head's product brings them along."""

    def __init__(self) -> None:
        self._address, self._known = -1, torch.empty(0)

    def keep(self, logits: Tensor, maxima: Tensor) -> None:
        """Remember the newest logits' maxima, bfloat16 ``[rows, blocks]``; both are overwritten together."""
        self._address, self._known = logits.data_ptr(), maxima

    def of(self, logits: Tensor) -> Tensor | None:
        """Those of the first rows of the newest logits; None of any others."""
        if logits.data_ptr() == self._address and len(logits) <= len(self._known):
            return self._known[: len(logits)]
        return None


class NativeSampler(Sampler):
    """One per engine; keeps nothing between calls. Logits that the kernels don't read are torch's business.

    Args:
        vocab_size: Width of a row of logits.
        maxima: What is known of them.
    """

    def __init__(self, vocab_size: int, maxima: HeadMaxima) -> None:
        super().__init__(vocab_size)
        self._maxima = maxima

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """See `Sampler.sample`."""
        if not rows or logits.shape != (len(rows), self._vocab_size) or not can_read(logits):
            return super().sample(logits, rows)  # or it refuses them
        biases = [_biases(row) for row in rows]
        requests = [
            self._request(index, row, *arrays)
            for index, (row, arrays) in enumerate(zip(rows, biases, strict=True))
        ]
        choices = choose(logits, requests, self._maxima.of(logits))
        sampled = SampledTokens([FAILED_ID] * len(rows), [None] * len(rows), [None] * len(rows))
        for index, (choice, request) in enumerate(zip(choices, requests, strict=True)):
            if not isfinite(choice.peak):
                sampled.errors[index] = unusable(choice.peak)
            elif not isfinite(choice.adjusted_peak):
                sampled.errors[index] = nothing_left()
            else:
                sampled.ids[index] = choice.id
                sampled.logprobs[index] = _logprobs(choice, request.reported)
        return sampled

    def _request(self, index: int, row: SamplingRow, biased: "array[int]", biases: "array[float]") -> Request:
        params, counts, allowed = row.params, row.counts, row.allowed
        request = Request(row=index, temperature=0.0, reported=-1)
        if counts is not None and params.repetition_penalty != 1:
            request.seen, request.seen_count = counts.seen.buffer_info()
            request.repetition = params.repetition_penalty
        if counts is not None and (params.presence_penalty or params.frequency_penalty):
            request.said, request.said_count = counts.said.buffer_info()
            request.times, _ = counts.times.buffer_info()
            request.presence, request.frequency = params.presence_penalty, params.frequency_penalty
        if biased:
            request.biased, request.biased_count = biased.buffer_info()
            request.biases, _ = biases.buffer_info()
        if allowed is not None:
            if allowed.dtype != torch.bool or allowed.shape != (self._vocab_size,) or allowed.stride(0) != 1:
                raise ValueError(f"{tuple(allowed.shape)} {allowed.dtype} don't say what is allowed")
            request.allowed = allowed.data_ptr()
        if not params.is_greedy:
            request.temperature = params.temperature
            request.top_k = top_k_of(params, self._vocab_size)
            request.top_p = params.top_p
            request.min_p = log(params.min_p) if params.min_p else -inf
            request.number = uniform(row.seed, row.position)
        if params.logprobs:
            request.reported = min(params.top_logprobs, self._vocab_size)
        return request


def _biases(row: SamplingRow) -> tuple["array[int]", "array[float]"]:
    """Tokens, and what is added to their logits."""
    biased, biases = array("i", row.params.logit_bias), array("f", row.params.logit_bias.values())
    biased.extend(row.banned_ids)
    biases.extend([-inf] * len(row.banned_ids))
    return biased, biases


def _logprobs(choice: Choice, reported: int) -> RowLogprobs | None:
    if reported < 0:
        return None
    base = choice.peak + choice.log_total
    top = zip(choice.top_ids[:reported], choice.top_logits[:reported], strict=True)
    return RowLogprobs(choice.logit - base, tuple((token_id, value - base) for token_id, value in top))
