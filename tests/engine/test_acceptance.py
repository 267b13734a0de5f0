from unittest.mock import Mock

import pytest

from seedance_server.engine.acceptance import Acceptance
from seedance_server.engine.batch import Chunk
from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.errors import NumericalError
from seedance_server.engine.generation import Generation
from seedance_server.engine.sampler import RowLogprobs, SampledTokens
from seedance_server.engine.sequence import FinishReason, Sequence, SequenceStatus
from tests.engine.driving import make_request
from tests.tiny_models import build_tiny_tokenizer

TOKENIZER = build_tiny_tokenizer()
END = 9


def _generation(**params):
    sequence = Sequence(
        make_request(4, [1, 2, 3], **params), order=0, seed=0, limit=20, table=BlockTable(([],))
    )
    sequence.status, sequence.computed = SequenceStatus.RUNNING, 2
    return Generation(sequence, TOKENIZER, [END])


def _accept(generation, draft, ids, error_at=None, logprobs=None):
    """One step of a chunk behind another one's row: what comes out, and what the draft's maker is told."""
    chunk = Chunk.of(generation.sequence, 1, draft)
    generation.sequence.computed += 1
    errors = [NumericalError("NaN") if row == error_at else None for row in range(len(ids))]
    sampled = SampledTokens([77, *ids], [None, *(logprobs or [None] * len(ids))], [None, *errors])
    told = Mock()
    acceptance = Acceptance(TOKENIZER.decode)
    output = acceptance.accept(generation, chunk, sampled, 1, told)
    return output, told.learn.call_args.args[1:], acceptance.tokens


@pytest.mark.parametrize(
    ("draft", "ids", "taken", "learned"),
    [
        ((), [70], (70,), (0, 0)),
        ((70, 71), [70, 71, 72], (70, 71, 72), (2, 2)),
        ((70, 71), [70, 80, 72], (70, 80), (2, 1)),
        ((70, 71), [80, 71, 72], (80,), (2, 0)),
        ((70, END), [70, END, 72], (70, END), (2, 1)),
    ],
)
def test_acceptance_takes_tokens_while_the_draft_says_what_was_chosen(draft, ids, taken, learned):
    """Behind a wrong guess or an end the logits are of another text: nothing of it counts."""
    generation = _generation()
    output, told, tokens = _accept(generation, draft, ids)
    assert output.token_ids == taken
    assert told == learned
    assert tokens == len(taken)
    assert generation.sequence.computed == 2 + len(taken)


def test_acceptance_keeps_what_came_before_a_row_that_failed():
    """One row of bad logits ends the answer there, with all that was certain."""
    output, told, _ = _accept(_generation(), (70, 71), [70, -1, 72], error_at=1)
    assert output.token_ids == (70,)
    assert output.finish.reason is FinishReason.ERROR
    assert isinstance(output.finish.error, NumericalError)
    assert told == (2, 1)


def test_acceptance_names_the_tokens_of_log_probabilities():
    """Clients get text beside each id."""
    logprobs = [RowLogprobs(-0.5, ((70, -0.5), (71, -1.5)))]
    output, _, _ = _accept(_generation(), (), [70], logprobs=logprobs)
    (logprob,) = output.logprobs
    assert (logprob.token_id, logprob.text, logprob.logprob) == (70, TOKENIZER.decode([70]), -0.5)
    assert [text for _, text, _ in logprob.top] == [TOKENIZER.decode([70]), TOKENIZER.decode([71])]
