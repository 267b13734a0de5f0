"""Runs a batch through the model: ids in, logits out.

All rows of a step stand side by side in one batch of one, whatever sequences they belong to; the stock model
sees ordinary hidden states and our attention keeps the sequences apart. The invariant: a sequence's logits
follow from its own tokens, but for rounding. Libraries switch to another kernel, with other rounding, for few
rows: those get idle neighbours, as many as the padding says. Whether that is enough to have the same bits in
any company, `invariance.py` tells. Where there are recorded steps, those that can be are.
"""

import torch

from seedance_server.engine.attention import STEP_ARGUMENT
from seedance_server.engine.batch import Batch
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.decode_graphs import DecodeGraphs, GraphSizes
from seedance_server.engine.device_errors import device_errors
from seedance_server.engine.errors import GraphsUnavailable
from seedance_server.engine.kv_cache import KvCache
from seedance_server.engine.model_loader import LoadedModel
from seedance_server.engine.padding import USUAL, Padding, choose_padding
from seedance_server.engine.streams import Streams

__all__ = ["ModelRunner", "open_runner"]


class ModelRunner:
    """A model with its KV cache.

    Args:
        loaded: The model.
        cache: Where its keys and values are kept.
        streams: Those of its device.
        padding: To how many rows a forward pass is padded.
        graphs: Recorded steps of this model and cache.

    Attributes:
        graphs: The same, or None.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache: KvCache,
        streams: Streams,
        *,
        padding: Padding = USUAL,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = loaded.model
        self._padding = padding
        self._cache = cache
        self._streams = streams
        self.graphs = graphs

    @property
    def recorded_steps(self) -> int:
        """How many of its steps ran as a recording."""
        return 0 if self.graphs is None else self.graphs.replays

    def trim(self) -> None:
        """Let go of memory that steps keep for the next one: after a trial larger than what may ever come."""
        self._cache.trim()

    def run(self, batch: Batch) -> torch.Tensor:
        """One forward pass.

        Args:
            batch: Not empty.

        Returns:
            Logits [rows, vocabulary] in the model's dtype: the ``sampled_rows`` of each of ``batch.sampled``;
            until the next call.

        Raises:
            OutOfDeviceMemory: The device refused an allocation; the cache's content for this batch is
                undefined.
            DeviceFailed: The device is of no use any more.
        """
        with device_errors():
            self._streams.begin_step()
            if self.graphs is not None and (logits := self.graphs.run(batch)) is not None:
                return logits
            return self._run(batch)

    def _run(self, batch: Batch) -> torch.Tensor:
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for chunk in batch.chunks:
            ids += chunk.token_ids
            positions += range(chunk.start, chunk.start + chunk.count)
            wanted += range(len(ids) - chunk.sampled_rows, len(ids))
        sampled = len(wanted)
        for padded in (ids, positions, wanted):
            padded.extend([0] * (self._padding.padded_rows(len(padded)) - len(padded)))
        upload = self._streams.upload
        logits: torch.Tensor = self._model(
            input_ids=upload(torch.tensor([ids])),
            position_ids=upload(torch.tensor([positions])),
            use_cache=False,
            logits_to_keep=upload(torch.tensor(wanted)),
            **{STEP_ARGUMENT: self._cache.plan(batch)},
        ).logits
        return logits[0, :sampled]


def open_runner(
    loaded: LoadedModel, config: EngineConfig, streams: Streams, *, blocks: int, context: int
) -> ModelRunner:
    """A runner for one engine, with a cache and, where the config wants them, recorded steps.

    Args:
        loaded: The model.
        config: The engine's.
        streams: Those of the model's device.
        blocks: How many the pool has.
        context: Most tokens of a sequence.

    Raises:
        InsufficientMemory: The cache doesn't fit.
        GraphsUnavailable: Steps were to be recorded, and here they can't be.
    """
    records = config.cuda_graphs == "on" or (config.cuda_graphs == "auto" and loaded.device.type == "cuda")
    if obstacle := loaded.backend.graph_obstacle if records else None:
        raise GraphsUnavailable(obstacle)
    padding = choose_padding(
        config.deterministic,
        least_rows=loaded.backend.least_rows,
        threads=config.threads or torch.get_num_threads(),
        is_cpu=loaded.device.type == "cpu",
    )
    cache = loaded.backend.open_cache(
        loaded.geometry,
        total_blocks=blocks + records,  # one for rows of padding
        block_size=config.block_size,
        longest_chunk=config.prefill_budget_tokens,
        device=loaded.device,
        streams=streams,
        padding=padding,
    )
    graphs = None
    if records:
        graphs = DecodeGraphs(
            loaded.model,
            cache,
            streams,
            sizes=GraphSizes.up_to(config.max_sequences, context, least_rows=padding.least_rows),
            vocab_size=loaded.vocab_size,
            device=loaded.device,
            padding_block=blocks,
        )
    return ModelRunner(loaded, cache, streams, padding=padding, graphs=graphs)
