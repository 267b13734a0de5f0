"""Stop strings, found whatever the pieces."""

import pytest
from hypothesis import given

from seedance_server.engine.stop import StopChecker
from tests.engine_strategies import few_letter_pieces, few_letter_stops, few_letter_texts


def run(stops, pieces):
    """Pushes the pieces until one matches; returns what was shown, piece by piece, and the match."""
    checker, shown = StopChecker(stops), []
    for piece in pieces:
        text, matched = checker.push(piece)
        shown.append(text)
        if matched is not None:
            return shown, matched
    return [*shown, checker.flush()], None


def search(stops, text):
    """The rule, naively: the stop that is complete first; of those that end together, the longest."""
    found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


@given(few_letter_stops, few_letter_pieces)
def test_stop_checker_finds_what_a_search_finds_when_text_is_cut_anywhere(stops, pieces):
    """Neither the text shown nor the stop found depends on how the text was cut."""
    shown, matched = run(stops, pieces)
    assert ("".join(shown), matched) == search(stops, "".join(pieces))


@given(few_letter_stops, few_letter_texts)
def test_stop_checker_holds_back_only_what_may_begin_a_stop(stops, text):
    """What is not shown yet is the longest suffix that is the beginning of a stop, never more."""
    if search(stops, text)[1] is not None:
        return
    checker = StopChecker(stops)
    shown, _ = checker.push(text)
    beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
    suffixes = [text[start:] for start in range(len(text) + 1)]
    assert shown == text[: len(text) - len(next((s for s in suffixes if s in beginnings), ""))]


def test_stop_string_ends_the_output_when_it_lies_across_two_pieces():
    """The known failure: a stop that no single piece holds is found, and nothing of it is shown."""
    assert run(["own fox"], ["The quick br", "own", " fox", " jumps"]) == (
        ["The quick br", "", ""],
        "own fox",
    )


@pytest.mark.parametrize("stops", [["own", "own fox"], ["own fox", "own"]])
def test_shorter_stop_wins_at_once_when_it_begins_a_longer_one(stops):
    """Generation ends with the character that completes a stop, in whatever order they came."""
    assert run(stops, ["The quick br", "ow", "n fox"]) == (["The quick br", "", ""], "own")


def test_longer_stop_wins_when_both_end_together():
    """Of two stops that are complete at the same character, the one that starts first leaves less text."""
    assert run(["fox", "own fox"], ["brown fox"]) == (["br"], "own fox")


def test_held_text_is_shown_when_the_output_ends():
    """Text that only looked like a stop is not lost."""
    assert run(["END"], ["a E", "N"]) == (["a ", "", "EN"], None)


def test_output_is_empty_when_the_stop_is_all_of_it():
    """A stop may equal the whole output."""
    assert run(["END"], ["E", "ND"]) == (["", ""], "END")


def test_stop_of_combined_characters_is_found_when_its_parts_come_apart():
    """A stop inside a family of joined emoji matches by code point."""
    assert run(["\u200d👧"], ["👩", "\u200d", "👩", "\u200d", "👧"]) == (
        ["👩", "", "\u200d👩", "", ""],
        "\u200d👧",
    )


def test_nothing_more_is_shown_when_the_output_is_over():
    """Late pieces of an ended output vanish."""
    checker = StopChecker(["x"])
    assert checker.push("ax") == ("a", "x")
    assert checker.push("b") == ("", "x")
    assert checker.flush() == ""


def test_text_passes_through_when_there_are_no_stops():
    """Without stops nothing is ever held back."""
    checker = StopChecker([])
    assert checker.push("abc") == ("abc", None)
    assert checker.flush() == ""
