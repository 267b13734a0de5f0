"""Runs a batch through the model: ids in, logits out.

All rows of a step stand side by side in one batch of one, whatever sequences they belong to; the stock model
sees ordinary hidden states and our attention keeps the sequences apart. The invariant: a sequence's logits
follow from its own tokens, but for rounding. Libraries switch to another kernel, with other rounding, for a
single row: a lonely one gets idle neighbours, as many as its backend needs. Whether that is enough to have
the same bits in any company, `invariance.py` tells.
"""

import torch

from seedance_server.engine.attention import STEP_ARGUMENT
from seedance_server.engine.batch import Batch
from seedance_server.engine.errors import OutOfDeviceMemory
from seedance_server.engine.kv_cache import KvCache
from seedance_server.engine.model_loader import LoadedModel
from seedance_server.engine.streams import Streams

__all__ = ["ModelRunner"]


class ModelRunner:
    """A model with its KV cache.

    Args:
        loaded: The model.
        cache: Where its keys and values are kept.
        streams: Those of its device.
        least_rows: Fewest rows of a forward pass; None for what the backend needs to round alike.
    """

    def __init__(
        self, loaded: LoadedModel, cache: KvCache, streams: Streams, *, least_rows: int | None = None
    ) -> None:
        self._model = loaded.model
        self._least_rows = loaded.backend.least_rows if least_rows is None else least_rows
        self._cache = cache
        self._streams = streams

    def run(self, batch: Batch) -> torch.Tensor:
        """One forward pass.

        Args:
            batch: Not empty.

        Returns:
            Logits [rows, vocabulary] in the model's dtype: the ``sampled_rows`` of each of ``batch.sampled``.

        Raises:
            OutOfDeviceMemory: The device refused an allocation; the cache's content for this batch is
                undefined.
        """
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for chunk in batch.chunks:
            ids += chunk.token_ids
            positions += range(chunk.start, chunk.start + chunk.count)
            wanted += range(len(ids) - chunk.sampled_rows, len(ids))
        sampled = len(wanted)
        for padded in (ids, positions, wanted):
            padded.extend([0] * (self._least_rows - len(padded)))
        upload = self._streams.upload
        try:
            logits: torch.Tensor = self._model(
                input_ids=upload(torch.tensor([ids])),
                position_ids=upload(torch.tensor([positions])),
                use_cache=False,
                logits_to_keep=upload(torch.tensor(wanted)),
                **{STEP_ARGUMENT: self._cache.plan(batch)},
            ).logits
        except torch.OutOfMemoryError as error:
            raise OutOfDeviceMemory(str(error).splitlines()[0]) from error
        return logits[0, :sampled]
