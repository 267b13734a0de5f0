"""Tests of `seedance_sdk.cli.arguments`."""

import argparse
from typing import get_type_hints

import pytest

from seedance_sdk.cli.arguments import add_sampling, parse_option, sampling_of
from seedance_sdk.options import Options


def read(*arguments: str) -> Options:
    parser = argparse.ArgumentParser()
    add_sampling(parser)
    return sampling_of(parser.parse_args(arguments))


def test_sampling_has_what_was_said_and_nothing_else() -> None:
    """What is left out, the server chooses."""
    assert read() == {}
    said = read(
        "--temperature", "0", "--max-tokens", "7", "--stop", "a", "--stop", "b", "--durability", "none"
    )
    assert said == {"temperature": 0.0, "max_tokens": 7, "stop": ["a", "b"], "durability": "none"}


def test_every_flag_is_an_option_of_the_client() -> None:
    """A name that the client doesn't know would fail at the first request."""
    parser = argparse.ArgumentParser()
    add_sampling(parser)
    names = {action.dest for action in parser._actions} - {"help"}
    assert names <= get_type_hints(Options).keys()


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("temperature=0.3", ("temperature", 0.3)),
        ("max-tokens = 9", ("max_tokens", 9)),
        ("seed=", ("seed", None)),
        ("durability=none", ("durability", "none")),
    ],
)
def test_options_are_read_as_people_type_them(text: str, option: tuple[str, object]) -> None:
    """Dashes, spaces, and nothing for the server's choice."""
    assert parse_option(text) == option


@pytest.mark.parametrize("text", ["", "temperature", "colour=red", "seed=many", "temperature=hot"])
def test_options_that_make_no_sense_are_refused(text: str) -> None:
    """With what would."""
    with pytest.raises(ValueError, match=r"say /set|must be a number"):
        parse_option(text)
