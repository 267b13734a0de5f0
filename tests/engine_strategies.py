"""The Hypothesis strategies of the engine: texts, tokens, pools, schedules."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import strategies as st

from seedance_server.engine.step_cost import StepCost


def _cost_of_increments(increments: list[tuple[int, float]]) -> StepCost:
    rows = accumulate((more for more, _ in increments), initial=1)
    costs = accumulate((dearer for _, dearer in increments), initial=1.0)
    return StepCost(tuple(zip(rows, costs, strict=True)))


# ---- engine: text

few_letter_stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)
few_letter_texts = st.text("abc", max_size=24)
"""Texts over so few letters that the stops above match, overlap and nearly match all the time."""

few_letter_pieces = st.lists(st.text("abc", max_size=6), max_size=6)
"""Such a text in pieces, some of them empty."""


def token_id_lists(vocab_size: int, fragments: list[int]) -> st.SearchStrategy[list[int]]:
    """Token ids, among them many fragments of characters and a few that have no token."""
    one = st.sampled_from(fragments) if fragments else st.nothing()
    return st.lists(one | st.integers(0, vocab_size + 1), max_size=40)


honest_texts = (
    st.lists(
        st.sampled_from(
            (
                *("hello", " ", "\n\n", "  fox", "<|", "|>", "</s"),
                *("im_end", "你好", "👩‍👩‍👧", "ﬁ", "<tool>", "\ue000", "é"),
            )
        ),
        min_size=1,
        max_size=8,
    )
    .map(lambda parts: "x" + "".join(parts))
    .filter(lambda text: "<|im_end|>" not in text)
)
"""Texts of users who write no control token, though nearly; never blank."""

hostile_texts = st.lists(
    st.sampled_from(
        (
            *("<|im_start|>", "<|im_end|>", "</s>", "<s>", "<|im_", "end|>"),
            *("<", "a", " ", "\n", "\uff1cs\uff1e", "\ue001"),
        )
    ),
    min_size=1,
    max_size=8,
).map(lambda parts: "".join(parts) + "z")
"""Texts of users who write control tokens, whole, nested and in halves; never blank."""


# ---- engine

block_rings = st.lists(st.none() | st.integers(1, 6), min_size=1, max_size=3).map(tuple)
"""Groups of layers: full attention, or a ring of so many blocks."""
prompt_lengths = st.integers(1, 60)
output_lengths = st.integers(1, 40)
picks = st.integers(0, 1000)
"""Which of several: taken modulo their number."""
scheduler_shapes = st.fixed_dictionaries(
    {
        "blocks": st.integers(6, 40),
        "block_size": st.sampled_from([1, 4, 16]),
        "rings": st.sampled_from([(None,), (None, 2), (None, 3, 3)]),
        "max_sequences": st.integers(1, 6),
        "budget": st.integers(1, 40),
        "reuse": st.booleans(),
    }
)
"""Pools from barely one sequence to several, budgets from one token to a whole prompt."""

flow_picks = st.tuples(st.integers(-1, 1), st.sampled_from("abcd"))
"""A flow of the fair queue: its class and its tenant."""
flow_weights = st.fixed_dictionaries({tenant: st.sampled_from([0.25, 1.0, 2.0, 8.0]) for tenant in "abcd"})
"""Powers of two: sums of what is divided by them are exact, so that a model may be compared."""
flow_costs = st.lists(st.integers(1, 8), min_size=1, max_size=4)

pool_shapes = st.fixed_dictionaries(
    {
        "blocks": st.integers(4, 40),
        "block_size": st.sampled_from([1, 2, 4]),
        "longest_chunk": st.integers(1, 9),
        "windows": st.sampled_from([(None,), (3,), (None, 1), (None, 5, 5), (2, 7)]),
    }
)
repetitive_texts = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=40)
"""Tokens of texts that often begin alike."""
chunk_sizes = st.integers(1, 9)
sessions = st.sampled_from(["", "a", "b"])

requesters = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["", "", "b", "c"]),
        "weight": st.sampled_from([0.5, 1.0, 3.0]),
        "priority": st.sampled_from([0, 0, 0, 1]),
    }
)
"""Who asks for a generation."""


seeds = st.integers(0, 2**31)

few_valued_rows = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=400)
"""Logits among which many are equal."""

score_steps = st.lists(st.integers(0, 12), min_size=2, max_size=40)
"""How far below the best each of a row's scores lies, in any order."""

few_tokens = st.lists(st.integers(0, 2), max_size=60)
"""Token ids of an answer that repeats itself, now and then."""

answers_beside_prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), min_size=2, max_size=60)),
    min_size=1,
    max_size=4,
)
"""Sequences side by side: prompts and answers of so few tokens that guesses are right at times."""

step_costs = st.lists(
    st.tuples(st.integers(1, 12), st.floats(0, 2, allow_subnormal=False)), min_size=1, max_size=5
).map(_cost_of_increments)
"""What steps cost by their rows: from the first point on so many rows further and so much dearer."""

truncations = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([0, 1, 3, 8, 20, 64]),
        "top_p": st.sampled_from([1e-9, 0.3, 0.77, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    }
)


def chunk_lengths(longest: int) -> st.SearchStrategy[list[int]]:
    """How a sequence of up to some dozens of tokens is cut: mostly long chunks and single tokens."""
    return st.lists(st.just(1) | st.integers(1, longest), min_size=1, max_size=6)


def engine_histories(sequences: int) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    """What happens to which of so many sequences, and how many steps follow it."""
    actions = st.sampled_from(["add", "add", "add", "pause", "resume", "cancel"])
    return st.lists(st.tuples(actions, st.integers(0, sequences - 1), st.integers(0, 12)), max_size=25)


excerpts = st.lists(st.tuples(picks, st.integers(1, 5)), max_size=3)
"""Where a few stop strings stand in a text: a place, modulo its length, and so many characters."""

interruptions = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["park", "restart"])), max_size=6)
"""After so many more steps an answer is parked by its engine, or has to go on in another one."""
