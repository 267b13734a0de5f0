"""What penalties are counted by: the same however a sequence's tokens came."""

from collections import Counter

from hypothesis import given

from seedance_server.engine.token_history import TokenHistory
from tests.engine_strategies import few_tokens, picks


def counted(counts):
    return dict(zip(counts.said, counts.times, strict=True)), list(counts.seen)


@given(few_tokens, few_tokens, few_tokens, picks)
def test_counts_are_those_of_the_tokens_when_they_came_one_by_one_at_once_or_as_a_draft(
    prompt, output, draft, pick
):
    """A sequence that goes on after a restart, or guesses, is penalised as it would have been."""
    step_by_step, tokens = TokenHistory(len(prompt)), [*prompt, *output]
    for length in range(len(tokens) + 1):
        if (length + pick) % 3:
            step_by_step.counts(tokens[:length], draft[:1])
    at_once = TokenHistory(len(prompt))
    for history in (step_by_step, at_once):
        for ahead in ((), draft, ()):
            times, seen = counted(history.counts(tokens, ahead))
            assert times == Counter([*output, *ahead])
            assert len(seen) == len(set(seen))
            assert set(seen) == {*tokens, *ahead}


def test_tokens_are_numbers_of_32_bits():
    """The kernels read them in place."""
    counts = TokenHistory(1).counts([5, 6])
    assert {each.itemsize for each in (counts.seen, counts.said, counts.times)} == {4}
