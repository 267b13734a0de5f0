"""Some rows of logits side by side, and what has been found out about them, each thing once.

The invariant: what is found out about a row is the same, bit for bit, whatever its neighbours. It knows
temperatures, but neither requests nor randomness.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seedance_server.engine.candidates import BlockPasses, best_tokens, block_tokens
from seedance_server.engine.streams import Streams

__all__ = ["CANDIDATES", "LogitLines"]

CANDIDATES = (64, 512, 4096)
"""How many of the best tokens are looked at before the whole vocabulary is sorted. 64 decide nearly all rows
of a trained model at top_p 0.95, as long as it knows what to say."""


class LogitLines:
    """Rows of logits, and what has been found out about them.

    Attributes:
        streams: Those of their device.
        logits: They.
        maxima: Of their blocks, see `BlockPasses.maxima`.
        peaks: The greatest logit of each, once it was read.
        firsts: The first token that has it; meaningless where the peak isn't finite.
    """

    peaks: list[float]
    firsts: list[int]

    def __init__(
        self, logits: Tensor, passes: BlockPasses, streams: Streams, maxima: Tensor | None = None
    ) -> None:
        self.streams = streams
        self.logits = logits
        self.maxima = maxima = passes.maxima(logits) if maxima is None else maxima
        self._passes = passes
        # Of several equals `max` names the first. Not argmax: on a CPU that takes twice as long.
        peaks, block = maxima.max(-1)
        self._peaks = peaks.float()
        ids, values = block_tokens(logits, self._index(range(len(logits))), block[:, None])
        self._firsts = ids.gather(1, values.max(-1, keepdim=True).indices)[:, 0]
        self._totals: dict[tuple[int, float], Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Where the logits are."""
        return self.logits.device

    def read(self, *tensors: Tensor) -> list[list[Any]]:
        """Wait for the device: for peaks and firsts, and for what else was found out about some lines."""
        peaks, firsts, *others = self.streams.download(self._peaks, self._firsts, *tensors)
        self.peaks, self.firsts = peaks.tolist(), firsts.tolist()
        return [each.tolist() for each in others]

    def upload(self, numbers: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
        """The host's numbers where the logits are."""
        return self.streams.upload(torch.tensor(numbers, dtype=dtype))

    @property
    def vocab_size(self) -> int:
        """Width of a line."""
        return self.logits.shape[1]

    def scores(self, some: Sequence[int], values: Tensor, temperatures: Sequence[float]) -> Tensor:
        """Logits ``[len(some), n]``, less the peak, over the temperature.

        In this order: a small temperature's quotient would overflow.
        """
        peaks = self._peaks[self._index(some), None]
        return (values - peaks) / self.upload(temperatures)[:, None]

    def sums(self, some: Sequence[int], temperatures: Sequence[float]) -> Tensor:
        """Float64 ``[len(some), blocks]``: exp(score) of all tokens up to the end of each block.

        Added one by one: a sum's order of additions would depend on the number of rows.
        """
        weights = self._passes.weights(
            self.logits, some, self._peaks[self._index(some)], self.upload(temperatures)
        )
        sums = weights.cumsum(-1, dtype=torch.float64)
        self._totals.update(zip(zip(some, temperatures, strict=True), sums[:, -1], strict=True))
        return sums

    def totals(self, some: Sequence[int], temperatures: Sequence[float]) -> Tensor:
        """Float64 ``[len(some)]``: exp(score) over the whole vocabulary."""
        keys = list(zip(some, temperatures, strict=True))
        if missing := [key for key in keys if key not in self._totals]:
            self.sums(*zip(*missing, strict=True))
        return torch.stack([self._totals[key] for key in keys])

    def maxima_of(self, some: Sequence[int]) -> Tensor:
        """Copy those of some lines, in float32."""
        return self.maxima[self._index(some)].float()

    def inside(self, some: Sequence[int], blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and logits of one block ``[len(some), 1]`` of each line."""
        return block_tokens(self.logits, self._index(some), blocks)

    def best(self, some: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        """Values and ids of the best tokens, see `best_tokens`."""
        return best_tokens(self.logits, self._index(some), self.maxima, min(count, self.logits.shape[1]))

    def top(self, some: Sequence[int], counts: Sequence[int]) -> list[list[tuple[int, float]]]:
        """So many best tokens of each line, at most `CANDIDATES[0]`, as (id, logit); lower ids first."""
        values, ids = self.best(some, CANDIDATES[0])
        pairs = [list(zip(*each, strict=True)) for each in zip(ids.tolist(), values.tolist(), strict=True)]
        for place, count in enumerate(counts):
            found = pairs[place]
            # Equals of the last one seen may be out of sight: a longer look, at that line alone.
            for seen in (*CANDIDATES[1:], self.vocab_size):
                if not count or len(found) == self.vocab_size or found[count - 1][1] > found[-1][1]:
                    break
                values, ids = self.best(some[place : place + 1], seen)
                found = list(zip(ids[0].tolist(), values[0].tolist(), strict=True))
            pairs[place] = found[:count]
        return pairs

    def logits_of(self, some: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Float32 ``[len(some)]``."""
        return self.logits[self._index(some), self._index(ids)].float()

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return self.upload(numbers)
