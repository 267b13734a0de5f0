import pytest
from hypothesis import given

from seedance_server.engine.prompt_lookup import PromptLookup
from tests.engine_strategies import few_tokens, picks


def _propose(token_ids, most=7):
    return [token_id for token_id, _ in PromptLookup().propose(token_ids, most)]


@pytest.mark.parametrize(
    ("token_ids", "most", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 3, [4, 5, 6]),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1, [5]),
        ([9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3], 1, [4]),
        ([7, 8, 9, 7, 8, 9, 7, 8, 9], 5, [7, 8, 9, 7, 8]),
        ([5, 5, 5, 5], 3, [5, 5, 5]),
        ([1, 2, 3, 4, 5, 1, 2], 3, [3, 4, 5]),
        ([1, 2, 3, 9, 1], 1, [2]),
        ([1, 2], 3, []),
        ([1], 3, []),
        ([], 3, []),
    ],
)
def test_lookup_proposes_what_followed_where_the_last_tokens_stood(token_ids, most, expected):
    """Where they stood last, unless a text went along till here; what repeats goes on beyond the end."""
    assert _propose(token_ids, most) == expected


def test_lookup_trusts_most_what_went_on_alike_and_least_what_went_on_otherwise():
    """A place that didn't go on as the one before it did is hardly worth a row."""
    once = [1, 2, 3, 4, 90, 1, 2, 3]
    same = [1, 2, 3, 4, 90, 1, 2, 3, 4, 91, 1, 2, 3]
    changed = [1, 2, 3, 4, 90, 1, 2, 3, 5, 91, 1, 2, 3]
    low, usual, high = [PromptLookup().propose(each, 1)[0][1] for each in (changed, once, same)]
    assert 2 * low < usual < high


def test_lookup_goes_on_behind_a_word_that_is_new():
    """Lists have a new word in each line, and the rest as before."""
    line = [1, 2, 3, 4, 5, 6, 7, 8]
    assert _propose([*line, 100, *line, 101, *line, 102])[:4] == [1, 2, 3, 4]


def test_lookup_changes_again_what_has_changed():
    """A line's number stands in it twice: its second place changes as the first one did."""
    text, lookup = [], PromptLookup()
    lookup.propose([0], 1)
    for number in range(100, 112):
        text += [number, 1, 500 + number, 2, number, 3]
        for end in range(len(text) - 5, len(text) + 1):
            lookup.propose([0, *text[:end]], 1)
    assert [token_id for token_id, _ in lookup.propose([0, *text, 112, 1, 700, 2], 2)] == [112, 3]


def test_lookup_tells_lower_chances_the_further_it_guesses():
    """A token counts only if all before it are right."""
    chances = [chance for _, chance in PromptLookup().propose(list(range(30)) * 2, 15)]
    assert len(chances) == 15
    assert chances == sorted(chances, reverse=True)
    assert 0 < chances[-1] < chances[0] < 1


@pytest.mark.parametrize("right", [True, False])
def test_lookup_learns_from_every_token_how_likely_its_guesses_are(right):
    """Whether a guess was run or not: what came tells, so that no trial is needed."""
    prompt, answer, lookup = list(range(100, 200)), [], PromptLookup()
    before = lookup.propose([*prompt, 105], 1)[0][1]
    lookup = PromptLookup()
    for place in range(110, 180, 3):
        lookup.propose(prompt + answer, 1)
        answer += [place, place + 1 if right else 500 + place]
    (after,) = [chance for _, chance in lookup.propose([*prompt, *answer, 105], 1)] or [0.0]
    assert after > before + 0.3 if right else after < before - 0.2


def test_lookup_reads_a_long_prompt_in_parts_and_looks_at_its_end_only():
    """No step waits for a prompt of a hundred thousand tokens to be indexed."""
    lookup = PromptLookup()
    prompt = [1, 2, 3, *range(10, 20_000), 1, 2]
    calls = 0
    while not lookup.propose([*prompt, 19_998], 1):
        calls += 1
        assert calls < 20
    assert calls == 15
    assert lookup.propose([*prompt, 19_998, 1, 2], 1)[0][0] == 19_998  # not the 3, which is too far back


@given(few_tokens, picks)
def test_lookup_finds_the_same_at_every_pace(token_ids, pick):
    """Several tokens a step or one: what was guessed and what was read are kept apart."""
    prompt, answer = token_ids[:20], token_ids[20:]
    slowly, fast = PromptLookup(), PromptLookup()
    for lookup in (slowly, fast):
        lookup.propose(prompt, 7)
    for length in range(len(answer)):
        slowly.propose(prompt + answer[:length], 1 + pick % 7)
    assert slowly.propose(token_ids, 5) == fast.propose(token_ids, 5)
