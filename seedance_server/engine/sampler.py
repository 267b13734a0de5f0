"""Chooses the next token of each row of logits.

The invariant: what a row gets depends on its own logits, parameters, seed and position, bit for bit, never
on its neighbours. That is so on a CPU; on a CUDA device sums may differ in the last bits of float64 with the
number of rows, for PyTorch promises no order of additions there. Chance comes from `philox.uniform`. All rows
go through the same few operations whatever their parameters are; a row that needs more (a full sort) gets it
alone.

Reported log-probabilities are those of the model: log-softmax of the logits as they came, before penalties,
temperature and truncation (as OpenAI's and vLLM's are). The vocabulary is not sorted: see `candidates.py`.
It knows nothing of text or of sequences.
"""

import math
from collections.abc import Sequence

import torch
from attrs import field, frozen
from torch import Tensor

from seedance_server.engine.candidates import BLOCK_TOKENS, BlockPasses, block_tokens
from seedance_server.engine.errors import NumericalError
from seedance_server.engine.logit_lines import CANDIDATES, LogitLines
from seedance_server.engine.penalties import adjust_logits, is_adjusted
from seedance_server.engine.philox import uniform
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.streams import CpuStreams, Streams
from seedance_server.engine.token_history import TokenCounts
from seedance_server.engine.truncation import Truncation, is_truncated

__all__ = [
    "FAILED_ID",
    "RowLogprobs",
    "SampledTokens",
    "Sampler",
    "SamplingRow",
    "nothing_left",
    "unusable",
]

FAILED_ID = -1
"""Stands in `SampledTokens.ids` for a row that has an error."""

_SEEN_TOGETHER = 2**14
"""Candidates of several rows that are looked at together: a few megabytes of blocks to find them in."""

_COPIED_ROWS = 16
"""Rows that are copied to be adjusted at a time: 16 MiB for a vocabulary of 262,144, which are kept, since
fresh pages cost many times what the copy does."""


@frozen(kw_only=True)
class SamplingRow:
    """What the sampler must know of one sequence.

    Attributes:
        params: The request's parameters.
        seed: Signed 64-bit; the request's own or the engine's pick.
        position: Index of the token to be chosen in the output, from 0.
        counts: Of the tokens so far, where there is a penalty.
        banned_ids: Ids that can't be chosen now: the end tokens while fewer than ``min_tokens`` are out.
        allowed: Bool ``[vocab_size]``, the only ids that can, if the answer must have a certain form.
    """

    params: SamplingParams
    seed: int
    position: int
    counts: TokenCounts | None = None
    banned_ids: tuple[int, ...] = ()
    allowed: Tensor | None = field(default=None, eq=False, repr=False)

    @property
    def is_adjusted(self) -> bool:
        """Whether its logits are changed before a token is chosen."""
        return self.allowed is not None or is_adjusted(self.params, self.banned_ids)


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


def unusable(peak: float) -> NumericalError:
    """What is wrong with a row whose highest logit is no finite number."""
    return NumericalError(f"the highest logit is {peak}")


def nothing_left() -> NumericalError:
    """What is wrong with a row that its request leaves no token of."""
    return NumericalError("penalties and bans leave no token to choose")


class Sampler:
    """One per engine; between calls it keeps nothing but scratch.

    Args:
        vocab_size: Width of a row of logits.
        streams: Those of the logits' device; None for a CPU.
    """

    def __init__(self, vocab_size: int, streams: Streams | None = None) -> None:
        self._vocab_size = vocab_size
        self._passes = BlockPasses()
        self._streams = streams or CpuStreams(lambda: 0.0)

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
        sampled = SampledTokens([FAILED_ID] * len(rows), [None] * len(rows), [None] * len(rows))
        if not rows:
            return sampled
        plain = LogitLines(logits, self._passes, self._streams)
        self._choose(plain, {i: i for i, row in enumerate(rows) if not row.is_adjusted}, rows, sampled)
        sound = []
        for index, peak in enumerate(plain.peaks):
            if math.isfinite(peak):
                sound.append(index)
            else:
                sampled.errors[index] = unusable(peak)
        adjusted = [i for i in sound if rows[i].is_adjusted]
        for start in range(0, len(adjusted), _COPIED_ROWS):
            some = adjusted[start : start + _COPIED_ROWS]
            lines = self._adjust(plain, some, [rows[i] for i in some])
            self._choose(lines, dict(enumerate(some)), rows, sampled)
        if wanted := [i for i in sound if rows[i].params.logprobs and sampled.errors[i] is None]:
            _report(plain, wanted, rows, sampled)
        return sampled

    def _adjust(self, plain: LogitLines, adjusted: Sequence[int], rows: Sequence[SamplingRow]) -> LogitLines:
        """Some of the lines as their requests want them."""
        scores = self._passes.copy(plain.logits, adjusted, [row.allowed for row in rows])
        maxima = plain.maxima_of(adjusted)
        for line, row in enumerate(rows):
            if row.allowed is not None:
                maxima[line] = self._passes.maxima(scores[line : line + 1])[0]
        changed = adjust_logits(scores, rows, self._streams.upload)
        if len(changed):
            lines, ids = changed // self._vocab_size, changed % self._vocab_size
            blocks = lines * maxima.shape[1] + ids // BLOCK_TOKENS
            if not blocks.is_cuda:  # there the host would have to wait for their number
                blocks = torch.unique(blocks)
            lines, inside = blocks // maxima.shape[1], blocks % maxima.shape[1]
            _, values = block_tokens(scores, lines, inside[:, None])
            maxima.view(-1)[blocks] = values.amax(-1)
        return LogitLines(scores, self._passes, self._streams, maxima)

    def _choose(
        self, lines: LogitLines, owners: dict[int, int], rows: Sequence[SamplingRow], sampled: SampledTokens
    ) -> None:
        """Choose for some lines; ``owners`` says which row each belongs to.

        What the device finds comes back once. A line without a finite peak is drawn for like the others, and
        what came of it isn't looked at.
        """
        drawn = [line for line, index in owners.items() if not rows[index].params.is_greedy]
        free, cut = (
            [line for line in drawn if is_truncated(rows[owners[line]].params, self._vocab_size) is truncated]
            for truncated in (False, True)
        )
        tensors: list[Tensor] = []
        if free:
            tensors.append(_draw(lines, free, [rows[owners[line]] for line in free]))
        if cut:
            tensors += _draw_truncated(lines, cut, [rows[owners[line]] for line in cut])
        found = lines.read(*tensors)
        chosen = dict(zip(free, found[0], strict=True)) if free else {}
        chosen |= zip(cut, found[-2], strict=True) if cut else ()
        decided = dict(zip(cut, found[-1], strict=True)) if cut else {}
        undecided: list[int] = []
        for line, index in owners.items():
            if not math.isfinite(lines.peaks[line]):
                sampled.errors[index] = nothing_left()
            elif rows[index].params.is_greedy:
                sampled.ids[index] = lines.firsts[line]
            elif decided.get(line, True):
                sampled.ids[index] = chosen[line]
            else:
                undecided.append(line)
        longer = _draw_on(lines, undecided, [rows[owners[line]] for line in undecided])
        for line, token_id in zip(undecided, longer, strict=True):
            sampled.ids[owners[line]] = token_id


def _draw(lines: LogitLines, some: Sequence[int], rows: Sequence[SamplingRow]) -> Tensor:
    """Draws from softmax(scores): first a block, then a token in it.

    The tokens are lined up by id, not by probability: rounding that swaps two near-equal tokens then moves
    boundaries by a hair, where a sorted line would exchange the two.
    """
    temperatures = [row.params.temperature for row in rows]
    sums = lines.sums(some, temperatures)
    target = sums[:, -1:] * _numbers(lines, rows)
    # The first sum beyond the target: what has no weight adds nothing, so it can't be the first. There is
    # none in a line that isn't sound.
    block = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    ids, values = lines.inside(some, block)
    weights = torch.exp(lines.scores(some, values, temperatures))
    beyond = before + weights.cumsum(1, dtype=torch.float64) > target
    # A block's own sum was rounded, so its last weights may fall short of the target.
    places = torch.arange(ids.shape[1], device=ids.device)
    last = torch.where(weights > 0, places, 0).amax(1)
    place = torch.minimum(torch.where(beyond, places, len(places)).amin(1), last)
    return ids.gather(1, place[:, None])[:, 0]


def _draw_truncated(
    lines: LogitLines, some: Sequence[int], rows: Sequence[SamplingRow]
) -> tuple[Tensor, Tensor]:
    """Draws from what top_k, top_p and min_p leave of softmax(scores), and says where that is decided."""
    left = _truncate(lines, some, rows, CANDIDATES[0])
    return _pick(left, _numbers(lines, rows)), left.decided


@frozen(eq=False)
class _Left:
    """What truncation leaves of some lines: the first ``counts`` of ``ids``, if that is ``decided``."""

    scores: Tensor
    ids: Tensor
    counts: Tensor
    decided: Tensor


def _truncate(lines: LogitLines, some: Sequence[int], rows: Sequence[SamplingRow], seen: int) -> _Left:
    """What is left, as far as the ``seen`` best tokens of each line tell."""
    params = [row.params for row in rows]
    temperatures = [each.temperature for each in params]
    bounds = Truncation.of(params, lines.vocab_size, lines.streams.upload)
    totals = torch.zeros(len(some), dtype=torch.float64, device=lines.device)
    if nucleus := [place for place, each in enumerate(params) if bounds.needs_total(each)]:
        of_these = lines.totals([some[i] for i in nucleus], [temperatures[i] for i in nucleus])
        totals[lines.upload(nucleus)] = of_these
    values, ids = lines.best(some, seen)
    scores = lines.scores(some, values, temperatures)
    return _Left(scores, ids, *bounds.count(scores, totals))


def _draw_on(lines: LogitLines, some: Sequence[int], rows: Sequence[SamplingRow]) -> list[int]:
    """The same for lines that take a longer look; the whole vocabulary decides in any case."""
    chosen = [FAILED_ID] * len(some)
    places = list(range(len(some)))
    for seen in (*CANDIDATES[1:], lines.vocab_size):
        together, waiting = max(1, _SEEN_TOGETHER // seen), places
        places = []
        for start in range(0, len(waiting), together):
            part = waiting[start : start + together]
            of_these = [rows[place] for place in part]
            left = _truncate(lines, [some[place] for place in part], of_these, seen)
            picked, decided = _pick(left, _numbers(lines, of_these)).tolist(), left.decided.tolist()
            for place, token_id, done in zip(part, picked, decided, strict=True):
                chosen[place] = token_id
                places += () if done else (place,)
    return chosen


def _pick(left: _Left, numbers: Tensor) -> Tensor:
    """Draws one id of each line, from those left lined up by id."""
    kept = torch.arange(left.ids.shape[1], device=left.ids.device) < left.counts[:, None]
    line = torch.where(kept, left.ids, left.ids.max() + 1).sort(1)
    weights = torch.where(kept, torch.exp(left.scores), 0.0).gather(1, line.indices)
    sums = weights.cumsum(1, dtype=torch.float64)
    place = torch.searchsorted(sums, sums[:, -1:] * numbers, right=True).clamp_(max=sums.shape[1] - 1)
    return line.values.gather(1, place)[:, 0]


def _numbers(lines: LogitLines, rows: Sequence[SamplingRow]) -> Tensor:
    """Where in the line each draw falls: float64 ``[rows, 1]`` in [0, 1)."""
    return lines.upload([[uniform(row.seed, row.position)] for row in rows], torch.float64)


def _report(
    lines: LogitLines, some: Sequence[int], rows: Sequence[SamplingRow], sampled: SampledTokens
) -> None:
    """Log-probabilities under the model alone."""
    log_totals = lines.totals(some, [1.0] * len(some)).log()
    chosen = lines.logits_of(some, [sampled.ids[line] for line in some])
    bases = [lines.peaks[line] + each for line, each in zip(some, log_totals.tolist(), strict=True)]
    counts = [min(rows[line].params.top_logprobs, lines.vocab_size) for line in some]
    tops = lines.top(some, counts) if any(counts) else [[]] * len(some)
    for line, base, logit, top in zip(some, bases, chosen.tolist(), tops, strict=True):
        sampled.logprobs[line] = RowLogprobs(logit - base, tuple((i, value - base) for i, value in top))
