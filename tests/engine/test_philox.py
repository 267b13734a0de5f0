"""Randomness by counter."""

import pytest

from seedance_server.engine.philox import philox4x32, uniform

ONES = 0xFFFFFFFF
FIXED = [0.3990464708489645, 0.3583605106473168]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    """The known answers of the authors' Random123 library."""
    assert philox4x32(counter, key) == words


def test_uniform_is_the_same_for_ever_when_called_again():
    """A resume years later draws what was drawn before: these numbers must never change."""
    assert uniform(42, 0) == uniform(42, 0)
    assert [uniform(0, 0), uniform(42, 7)] == FIXED


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 2**32])
def test_uniform_differs_when_any_part_of_the_counter_does(seed):
    """All 64 bits of seed and position count."""
    numbers = {uniform(seed ^ flip, position) for flip in (0, 1, 2**40) for position in (0, 1, 2**33)}
    assert len(numbers) == 9
    assert all(0 <= number < 1 for number in numbers)


def test_uniform_is_even_when_drawn_along_a_sequence():
    """Ten thousand draws of one seed fill ten bins evenly (chi-square under its 99.9 % point)."""
    bins = [0] * 10
    for position in range(10_000):
        bins[int(uniform(7, position) * 10)] += 1
    assert sum((count - 1000) ** 2 / 1000 for count in bins) < 27.88
