"""Measures, at start, what steps cost by their rows, through the very runner and sampler that will serve.

Each is a draft behind one sequence's last token, over keys and values that nobody wrote: what they say
doesn't change how long it takes. Tokens are drawn, which takes longer than naming the likeliest. The least of
a few times counts: a machine that does something else meanwhile only ever makes a step longer.
"""

from math import inf

import torch

from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.model_runner import ModelRunner
from seedance_server.engine.sampler import Sampler
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sampling_rows import sampling_rows
from seedance_server.engine.sequence import GenerationRequest, Sequence
from seedance_server.engine.step_cost import USUAL_COST, StepCost
from seedance_server.engine.streams import Streams

__all__ = ["measure_step_cost"]

_ROWS = (1, 2, 4, 8, 16)
_CONTEXT_TOKENS = 64  # of the sequence: a short prompt's
_MOST_TIMES = 4
_ENOUGH_S = 0.4
"""After so long nothing is measured again; a step that is so slow is disturbed little."""


@torch.inference_mode()
def measure_step_cost(
    runner: ModelRunner, sampler: Sampler, pool: BlockPool, streams: Streams, *, longest_chunk: int
) -> StepCost:
    """Run steps of several sizes. Takes some 0.4 s, or longer where five steps do.

    Args:
        runner: Of the engine.
        sampler: The same.
        pool: Its blocks, none of them in use; all are given back.
        streams: Time the runner's work.
        longest_chunk: Most tokens of one sequence in one step.
    """
    rows = [count for count in _ROWS if count <= longest_chunk]
    context = min(_CONTEXT_TOKENS, pool.capacity_tokens - max(rows))
    if len(rows) < 2 or context < 1:
        return USUAL_COST  # a pool or a chunk of so few tokens that drafts hardly matter
    request = GenerationRequest(id=0, prompt_ids=(1,) * context, params=SamplingParams(), arrival_s=0.0)
    sequence = Sequence(request, order=0, seed=0, limit=context + max(rows), table=pool.new_table())
    pool.reserve(sequence.table, sequence.limit)
    sequence.computed = context - 1
    seconds = dict.fromkeys(rows, inf)
    spent_s = 0.0
    for _ in range(_MOST_TIMES):
        for count in rows:
            before = streams.mark()
            chunk = Chunk.of(sequence, 1, (1,) * (count - 1))
            sampler.sample(runner.run(Batch.of([chunk])), sampling_rows(chunk, lambda _ahead: ()))
            taken_s = streams.seconds_between(before, streams.mark())
            seconds[count] = min(seconds[count], taken_s)
            spent_s += taken_s
        if spent_s > _ENOUGH_S:
            break
    pool.release(sequence.table)
    runner.trim()
    return StepCost.of_seconds(seconds) if seconds[1] > 0 else USUAL_COST
