"""What any one field may hold."""

from collections.abc import Callable

import pytest

from seedance_wire.envelope import MAX_LIST_ENTRIES
from seedance_wire.field_rules import (
    I64,
    InvalidFieldError,
    check_count,
    check_number,
    check_signed,
    check_size,
    check_text,
    check_texts,
    check_traceparent,
)


@pytest.mark.parametrize(
    ("check", "field"),
    [
        (lambda: check_number("f", -1, 0, 9), "f"),
        (lambda: check_number("f", 10, 0, 9), "f"),
        (lambda: check_text("f", "\ud800"), "f"),
        (lambda: check_texts("f", ["a", "\udfff"]), "f[1]"),
        (lambda: check_size("f", b"", 1, 2), "f"),
        (lambda: check_size("f", b"abc", 1, 2), "f"),
        (lambda: check_signed("f", [0, I64]), "f[1]"),
        (lambda: check_signed("f", [-I64 - 1]), "f[0]"),
        (lambda: check_count("f", MAX_LIST_ENTRIES + 1), "f"),
        (lambda: check_traceparent("f", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"), "f"),
        (lambda: check_traceparent("f", f"00-{'A' * 32}-{'b' * 16}-01"), "f"),
    ],
)
def test_rule_names_the_field_that_breaks_it(check: Callable[[], None], field: str) -> None:
    """Who is refused is told where to look."""
    with pytest.raises(InvalidFieldError) as caught:
        check()
    assert caught.value.field == field


def test_rules_allow_their_own_ends_and_absence() -> None:
    """Ranges include both ends, and what is absent breaks nothing."""
    check_number("f", 0, 0, 9)
    check_number("f", 9, 0, 9)
    check_number("f", None, 0, 9)
    check_text("f", None)
    check_text("f", "שלום 😀")
    check_size("f", b"ab", 1, 2)
    check_signed("f", [-I64, I64 - 1])
    check_count("f", MAX_LIST_ENTRIES)
