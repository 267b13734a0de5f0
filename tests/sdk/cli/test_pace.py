"""Tests of `seedance_sdk.cli.pace`."""

import pytest

from seedance_sdk.cli.pace import Pace, format_ms
from seedance_sdk.completion import Chunk, StageTiming, Usage


def chunk(received_at: float, *, tokens: int = 1, **more: object) -> Chunk:
    return Chunk(delta="x", id=1, offset=0, token_count=tokens, received_at=received_at, **more)


def test_pace_counts_from_the_request_to_the_first_token_and_from_there() -> None:
    """The rate is of the tokens after the first, whose wait is told apart."""
    pace = Pace(clock=lambda: 10.0)
    assert pace.line() == "0 tokens · first -"
    pace.note(chunk(10.5))
    assert (pace.first_ms, pace.tokens_per_second) == (500.0, None)
    pace.note(chunk(11.0))
    pace.note(chunk(11.5, tokens=2))
    assert pace.tokens_per_second == 3.0
    assert pace.line() == "4 tokens · first 500 ms · 3.0 tokens/s"


def test_pace_says_at_the_end_how_it_ended() -> None:
    """With the longest gaps, and what of the prompt was there already."""
    pace = Pace(clock=lambda: 0.0)
    pace.note(chunk(0.1))
    pace.note(chunk(0.2))
    usage = Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=8)
    pace.note(chunk(0.3, tokens=0, finish_reason="stop", usage=usage, timing=StageTiming()))
    assert pace.tokens == 2
    assert pace.line() == (
        "2 tokens · first 100 ms · 10.0 tokens/s · gap P99 100 ms · 8 of 9 prompt tokens cached · stop"
    )


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (None, "-"),
        (0.04, "0.0 ms"),
        (9.94, "9.9 ms"),
        (10.4, "10 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (3.6e6, "60 min"),
    ],
)
def test_times_are_written_for_people(milliseconds: float | None, words: str) -> None:
    """As many digits as one reads."""
    assert format_ms(milliseconds) == words
