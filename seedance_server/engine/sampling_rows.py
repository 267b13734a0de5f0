"""What the sampler must know of a chunk: one row for the token behind each of the chunk's last ones.

Each row is as it would be without a draft: its position, its penalties and its bans are those of the tokens
before it. That is why a draft changes nothing but the number of tokens that a step brings.
"""

from collections.abc import Callable

from seedance_server.engine.batch import Chunk
from seedance_server.engine.generation import Form
from seedance_server.engine.penalties import is_penalised
from seedance_server.engine.sampler import SamplingRow

__all__ = ["sampling_rows"]


def sampling_rows(
    chunk: Chunk, banned_ids: Callable[[int], tuple[int, ...]], form: Form | None = None
) -> list[SamplingRow]:
    """The rows of one chunk, in order.

    Args:
        chunk: One that samples.
        banned_ids: Tokens that must not be chosen so many tokens after the next.
        form: What the answer must be; then the chunk has no draft.
    """
    sequence = chunk.sequence
    params = sequence.request.params
    position = sequence.completion_tokens
    return [
        SamplingRow(
            params=params,
            seed=sequence.seed,
            position=position + ahead,
            counts=sequence.history.counts(sequence.token_ids, chunk.draft[:ahead])
            if is_penalised(params)
            else None,
            banned_ids=banned_ids(ahead),
            allowed=None if form is None else form.allowed(),
        )
        for ahead in range(chunk.sampled_rows)
    ]
