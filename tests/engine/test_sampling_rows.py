from seedance_server.engine.batch import Chunk
from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sampling_rows import sampling_rows
from seedance_server.engine.sequence import GenerationRequest, Sequence


def test_rows_of_a_draft_are_those_that_its_tokens_would_have_had_one_by_one():
    """Position, output and bans move on with each token of the draft."""
    request = GenerationRequest(id=1, prompt_ids=(1, 2), params=SamplingParams(), arrival_s=0.0)
    sequence = Sequence(request, order=0, seed=9, limit=99, table=BlockTable(([],)))
    sequence.token_ids += [5, 6]
    sequence.computed = 3
    rows = sampling_rows(Chunk.of(sequence, 1, draft=(7, 8)), lambda ahead: (ahead,))
    assert [(row.position, row.output_ids, row.banned_ids) for row in rows] == [
        (2, [5, 6], (0,)),
        (3, [5, 6, 7], (1,)),
        (4, [5, 6, 7, 8], (2,)),
    ]
    assert {(row.seed, row.prompt_ids) for row in rows} == {(9, (1, 2))}
