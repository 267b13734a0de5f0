from seedance_server.engine.batch import Chunk
from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sampling_rows import sampling_rows
from seedance_server.engine.sequence import GenerationRequest, Sequence


def test_rows_of_a_draft_are_those_that_its_tokens_would_have_had_one_by_one():
    """Position, output and bans move on with each token of the draft."""
    request = GenerationRequest(
        id=1, prompt_ids=(1, 2), params=SamplingParams(repetition_penalty=1.1), arrival_s=0.0
    )
    sequence = Sequence(request, order=0, seed=9, limit=99, table=BlockTable(([],)))
    sequence.token_ids += [5, 6]
    sequence.computed = 3
    rows = sampling_rows(Chunk.of(sequence, 1, draft=(7, 8)), lambda ahead: (ahead,))
    assert [(row.position, list(row.counts.said), row.banned_ids) for row in rows] == [
        (2, [5, 6], (0,)),
        (3, [5, 6, 7], (1,)),
        (4, [5, 6, 7, 8], (2,)),
    ]
    assert [list(row.counts.seen)[:2] for row in rows] == [[1, 2]] * 3
    assert {row.seed for row in rows} == {9}


def test_tokens_are_counted_only_for_those_who_ask():
    """A long prompt without penalties costs no walk over it."""
    request = GenerationRequest(id=1, prompt_ids=(1, 2), params=SamplingParams(), arrival_s=0.0)
    sequence = Sequence(request, order=0, seed=9, limit=99, table=BlockTable(([],)))
    sequence.computed = 1
    (row,) = sampling_rows(Chunk.of(sequence, 1), lambda _ahead: ())
    assert row.counts is None
