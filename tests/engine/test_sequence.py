import pytest
from attrs import evolve

from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence


def test_sequence_counts_prompt_output_and_what_remains():
    """A sequence always has a token to compute, and knows its prompt from its output."""
    request = GenerationRequest(id=7, prompt_ids=(1, 2, 3), params=SamplingParams(), arrival_s=0.0)
    sequence = Sequence(request, order=0, seed=0, limit=10, table=BlockTable(([],)))
    assert (sequence.id, sequence.remaining, sequence.completion_tokens) == (7, 3, 0)
    sequence.computed = 3
    sequence.token_ids.append(9)
    assert (sequence.remaining, sequence.prompt_tokens, sequence.completion_tokens) == (1, 3, 1)
    assert request.prompt_ids == (1, 2, 3)


def test_request_with_tokens_needs_the_seed_that_they_were_drawn_with():
    """Whoever keeps an answer's tokens keeps its seed: another one would go on as another answer."""
    request = GenerationRequest(id=7, prompt_ids=(1,), params=SamplingParams(), arrival_s=0.0)
    with pytest.raises(ValueError, match="seed"):
        evolve(request, generated_ids=(5,))
    assert evolve(request, generated_ids=(5,), params=SamplingParams(seed=0)).generated_ids == (5,)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_request_refuses_a_weight_that_cannot_be_shared_by(weight):
    """A share is a tenant's weight over the sum of all: that must be a number above 0."""
    request = GenerationRequest(id=7, prompt_ids=(1,), params=SamplingParams(), arrival_s=0.0, weight=0.5)
    with pytest.raises(ValueError, match="weight"):
        evolve(request, weight=weight)


@pytest.mark.parametrize("priority", [-17, 17])
def test_request_refuses_a_class_that_is_out_of_range(priority):
    """Classes weigh a power each: beyond the range the arithmetic of shares would overflow."""
    request = GenerationRequest(id=7, prompt_ids=(1,), params=SamplingParams(), arrival_s=0.0, priority=16)
    with pytest.raises(ValueError, match="priority"):
        evolve(request, priority=priority)
