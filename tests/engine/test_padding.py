import pytest

from seedance_server.engine.padding import USUAL, Padding, choose_padding, rounded_up


def test_numbers_are_rounded_up_to_a_multiple():
    """One that is a multiple stays."""
    assert [rounded_up(n, 4) for n in (0, 1, 4, 5)] == [0, 4, 4, 8]


def test_rows_are_padded_to_the_least_and_to_a_multiple():
    """A remainder of a few rows is what a library treats otherwise."""
    assert [Padding(least_rows=2).padded_rows(rows) for rows in (1, 2, 3)] == [2, 2, 3]
    assert [Padding(least_rows=8, rows=8).padded_rows(rows) for rows in (1, 8, 9)] == [8, 8, 16]


@pytest.mark.parametrize(
    ("deterministic", "least_rows", "is_cpu", "rows", "positions"),
    [
        ("off", 2, True, 1, 64),
        ("auto", 2, True, 2, 64),
        ("on", 2, True, 8, 512),
        ("on", 1, True, 1, 64),  # kernels that are invariant by themselves need no padding
        ("on", 2, False, 2, 64),
    ],
)
def test_padding_takes_the_trouble_that_is_asked_for(deterministic, least_rows, is_cpu, rows, positions):
    """ "on" costs time, so nobody else pays for it."""
    padding = choose_padding(deterministic, least_rows=least_rows, threads=2, is_cpu=is_cpu)
    assert (padding.padded_rows(1), padding.positions) == (rows, positions)
    assert (padding == USUAL) == (deterministic == "off" or least_rows == 1)


def test_padding_stays_bounded_for_many_threads():
    """A lonely row isn't padded to hundreds."""
    assert choose_padding("on", least_rows=2, threads=128, is_cpu=True).padded_rows(1) == 32
