"""Chooses the next token of each row of logits.

The invariant: what a row gets depends on its own logits, parameters, seed and position, bit for bit, never
on its neighbours. The maximum is exact in any batch, so it is taken of all rows at once; everything that
rounds is computed on a copy of the row alone. Chance comes from `philox.uniform`.

Reported log-probabilities are those of the model: log-softmax of the logits as they came, before penalties,
temperature and truncation (as OpenAI's and vLLM's are). The vocabulary is not sorted: top_k, top_p and
min_p look at the 64 best tokens and take more only where those don't decide it. It knows nothing of text or
of sequences.
"""

import math
from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from seedance_server.engine.errors import NumericalError
from seedance_server.engine.penalties import adjust_logits, is_adjusted
from seedance_server.engine.philox import uniform
from seedance_server.engine.sampling_params import SamplingParams

__all__ = ["FAILED_ID", "RowLogprobs", "SampledTokens", "Sampler", "SamplingRow"]

FAILED_ID = -1
"""Stands in `SampledTokens.ids` for a row that has an error."""

_BLOCK = 64  # tokens per block of the two-level search
_CANDIDATES = (64, 4096)  # how many of the best tokens are looked at before the whole vocabulary is sorted


@frozen(kw_only=True)
class SamplingRow:
    """What the sampler must know of one sequence.

    Attributes:
        params: The request's parameters.
        seed: Signed 64-bit; the request's own or the engine's pick.
        position: Index of the token to be chosen in the output, from 0.
        prompt_ids: Ids of the prompt.
        output_ids: Ids generated so far.
        banned_ids: Ids that can't be chosen now: the end tokens while fewer than ``min_tokens`` are out.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    banned_ids: tuple[int, ...] = ()


@frozen
class RowLogprobs:
    """Log-probabilities (natural, under the model alone) of one choice.

    Attributes:
        logprob: That of the token chosen.
        top: The most likely tokens as (id, log-probability), best first, the lower id first among equals.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@frozen
class SampledTokens:
    """One entry per row, in the order of the rows.

    Attributes:
        ids: The tokens chosen; FAILED_ID where there is an error.
        logprobs: Where the request asked for them, else None.
        errors: Why the row has no token, else None.
    """

    ids: list[int]
    logprobs: list[RowLogprobs | None]
    errors: list[NumericalError | None]


class Sampler:
    """Stateless; one per engine.

    Args:
        vocab_size: Width of a row of logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> SampledTokens:
        """Chooses one token per row.

        Args:
            logits: ``[len(rows), vocab_size]``, any floating dtype; not changed.
            rows: One per row of ``logits``.

        Returns:
            The choices. A row whose logits can't be sampled from (NaN, +inf, nothing but -inf, or nothing
            left after bans) has a NumericalError; the other rows are as they would be without it.
        """
        if logits.shape != (len(rows), self._vocab_size):
            raise ValueError(f"{tuple(logits.shape)} logits for {len(rows)} rows of {self._vocab_size}")
        sampled = SampledTokens([], [], [])
        if not rows:
            return sampled
        maxima = logits.max(-1)  # the first of equals, exact, and NaN wherever the row holds one
        for index, (row, peak, best) in enumerate(
            zip(rows, maxima.values.tolist(), maxima.indices.tolist(), strict=True)
        ):
            token_id, logprobs, error = self._sample_row(logits[index], row, peak, best)
            sampled.ids.append(token_id)
            sampled.logprobs.append(logprobs)
            sampled.errors.append(error)
        return sampled

    def _sample_row(
        self, logits: Tensor, row: SamplingRow, peak: float, best: int
    ) -> tuple[int, RowLogprobs | None, NumericalError | None]:
        params = row.params
        if not math.isfinite(peak):
            return FAILED_ID, None, NumericalError(f"the highest logit is {peak}")
        token_id = best
        if is_adjusted(params, row.banned_ids) or not params.is_greedy:
            scores = logits.to(torch.float32, copy=True)
            adjust_logits(scores, params, row.prompt_ids, row.output_ids, row.banned_ids)
            highest = scores.max(-1)
            peak, token_id = float(highest.values), int(highest.indices)
            if not math.isfinite(peak):
                return FAILED_ID, None, NumericalError("penalties and bans leave no token to choose")
            if not params.is_greedy:
                # Less the peak: the quotient of a small temperature must not overflow.
                scores.sub_(peak).div_(params.temperature)
                token_id = _choose(scores, params, uniform(row.seed, row.position))
        logprobs = _logprobs(logits, token_id, params.top_logprobs) if params.logprobs else None
        return token_id, logprobs, None


def _choose(scores: Tensor, params: SamplingParams, number: float) -> int:
    """Draws from softmax(scores), truncated; ``number`` in [0, 1) is where the draw falls.

    The tokens left are lined up by id, not by probability: rounding that swaps two near-equal tokens then
    moves boundaries by a hair, where a sorted line would exchange the two.
    """
    kept = _truncate(scores, params)
    weights = torch.exp(scores if kept is None else scores[kept])  # the highest score is 0
    sums = torch.cumsum(weights, 0, dtype=torch.float64)
    # The first sum beyond the target: a token without weight adds nothing, so it can't be the first.
    index = int(torch.searchsorted(sums, sums[-1:] * number, right=True))
    return index if kept is None else int(kept[index])


def _truncate(scores: Tensor, params: SamplingParams) -> Tensor | None:
    """Ids that top_k, then top_p, then min_p leave, ascending; None if that is all of them."""
    vocab_size = len(scores)
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    if not top_k and params.top_p >= 1 and not params.min_p:
        return None
    for size in (*_CANDIDATES, vocab_size):
        values, ids = _best(scores, min(size, vocab_size))
        count = _count_kept(scores, values, top_k, params.top_p, params.min_p)
        # Decided if the last one kept is better than the last one seen: no equal of it is out of sight.
        if len(ids) == vocab_size or values[count - 1] > values[-1]:
            break
    return ids[:count].sort().values


def _count_kept(scores: Tensor, values: Tensor, top_k: int, top_p: float, min_p: float) -> int:
    """How many of the sorted ``values`` are kept; all of them if it takes more to decide it.

    Ties at the edge of top_k and min_p are all kept, as Transformers does; top_p stops amid a tie, the lower
    ids first.
    """
    count = len(values)
    if top_k:
        count = int((values >= values[min(top_k, count) - 1]).sum())
        if count == len(values) < len(scores):
            return count
    if top_p < 1:
        weights = torch.exp(values[:count].double())
        total = weights.sum() if top_k else torch.exp(scores).sum(dtype=torch.float64)
        before = torch.cumsum(weights, 0) - weights
        count = int((before < total * top_p).sum())
    if min_p:
        count = min(count, int((values >= math.log(min_p)).sum()))  # the highest score is 0
    return max(1, count)


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` highest scores and their ids, best first, the lower id first among equals."""
    vocab_size = len(scores)
    ids = torch.arange(vocab_size, device=scores.device)
    if count * _BLOCK < vocab_size:
        # Exact: a token among the best sits in a block whose maximum is among the best maxima.
        padded = torch.nn.functional.pad(scores, (0, -vocab_size % _BLOCK), value=-torch.inf)
        best_blocks = torch.topk(padded.view(-1, _BLOCK).amax(-1), count).indices.sort().values
        ids = (best_blocks[:, None] * _BLOCK + ids[:_BLOCK]).flatten()
        ids = ids[ids < vocab_size]
    if count < len(ids):
        ids = ids[torch.topk(scores[ids], count).indices.sort().values]
    order = torch.sort(scores[ids], descending=True, stable=True)
    return order.values, ids[order.indices]


def _logprobs(logits: Tensor, token_id: int, count: int) -> RowLogprobs:
    raw = logits.to(torch.float32, copy=True)
    total = float(torch.logsumexp(raw, -1))
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, ids = _best(raw, min(count, len(raw)))
        top = tuple((int(i), value - total) for i, value in zip(ids.tolist(), values.tolist(), strict=True))
    return RowLogprobs(float(raw[token_id]) - total, top)
