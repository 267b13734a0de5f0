from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence


def _sequence(prompt_tokens):
    request = GenerationRequest(
        id=prompt_tokens, prompt_ids=(0,) * prompt_tokens, params=SamplingParams(), arrival_s=0.0
    )
    return Sequence(request, order=0, seed=0, limit=100, table=BlockTable(([],)))


def test_batch_puts_single_tokens_first_and_keeps_the_order_otherwise():
    """Rows of one token attend together, so they stand together."""
    long, single, longer, other = map(_sequence, (5, 1, 9, 1))
    batch = Batch.of([Chunk.of(long, 5), Chunk.of(single, 1), Chunk.of(longer, 4), Chunk.of(other, 1)])
    assert [chunk.sequence for chunk in batch.chunks] == [single, other, long, longer]
    assert batch.tokens == 11


def test_batch_samples_only_chunks_that_reach_the_last_token():
    """A prompt that is cut into chunks brings a token with its last one."""
    whole, cut = _sequence(5), _sequence(9)
    batch = Batch.of([Chunk.of(cut, 4), Chunk.of(whole, 5)])
    assert [chunk.sequence for chunk in batch.sampled] == [whole]


def test_chunk_runs_a_draft_behind_the_last_token_and_samples_after_each():
    """The tokens of a draft are the chunk's, not yet the sequence's."""
    sequence = _sequence(5)
    sequence.computed = 4
    chunk = Chunk.of(sequence, 1, draft=(7, 8))
    assert (chunk.token_ids, chunk.count, chunk.sampled_rows) == ([0, 7, 8], 3, 3)
    assert Batch.of([chunk]).spans == (chunk,)
    assert (Chunk.of(sequence, 1).sampled_rows, Chunk.of(_sequence(5), 4).sampled_rows) == (1, 0)
