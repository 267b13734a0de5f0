from itertools import pairwise

import pytest
from hypothesis import given

from seedance_server.engine.prompt_lookup import PromptLookup
from tests.engine_strategies import few_tokens, picks


@pytest.mark.parametrize(
    ("token_ids", "most", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 3, (4, 5, 6)),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 2, (4, 5)),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1, (5,)),
        ([7, 8, 9, 7, 8, 9, 7, 8, 9], 3, (7, 8, 9)),
        ([5, 5, 5, 5], 3, (5, 5, 5)),
        ([1, 2, 3, 4, 5, 1, 2], 3, ()),
        ([1, 2], 3, ()),
        ([], 3, ()),
    ],
)
def test_lookup_proposes_what_followed_the_last_tokens_when_they_stood_there_last(token_ids, most, expected):
    """The latest place counts; what repeats without end goes on beyond the end."""
    assert PromptLookup(7).propose(token_ids, most) == expected


def test_lookup_guesses_further_while_it_is_right_and_shorter_when_it_was_half_right():
    """A long quotation is worth long guesses."""
    lookup = PromptLookup(7)
    repeated = list(range(20)) * 2
    lengths = []
    for accepted in (3, 7, 2, 3, 7):
        guess = lookup.propose(repeated[:23], 7)
        lengths.append(len(guess))
        lookup.learn(len(guess), min(accepted, len(guess)))
    assert lengths == [3, 7, 7, 3, 7]


def test_lookup_rests_ever_longer_while_it_is_wrong_and_is_eager_again_once_it_was_right():
    """In a story that only seems to repeat itself, failed guesses become rare: their cost is bounded."""
    lookup = PromptLookup(7)
    steps, tried = 0, []
    while steps < 400:
        if guess := lookup.propose([1, 2, 3, 4, 1, 2, 3], 7):
            tried.append(steps)
            lookup.learn(len(guess), 0)
        steps += 1
    assert [later - earlier for earlier, later in pairwise(tried)] == [2, 3, 5, 9, 17, 33] + [65] * 5
    while not (guess := lookup.propose([1, 2, 3, 4, 1, 2, 3], 7)):
        pass
    lookup.learn(len(guess), 1)
    assert lookup.propose([1, 2, 3, 4, 1, 2, 3], 7)


@given(few_tokens, picks)
def test_lookup_finds_the_same_when_it_saw_the_tokens_grow(token_ids, pick):
    """The index is kept up with new tokens, never built anew."""
    grown = PromptLookup(7)
    for length in range(1, len(token_ids) + 1, 1 + pick % 4):
        grown.propose(token_ids[:length], 5)
    assert grown.propose(token_ids, 5) == PromptLookup(7).propose(token_ids, 5)
