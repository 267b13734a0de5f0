"""Flags that commands share: the server, and how to sample."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import Any, cast

from seedance_sdk.options import Options

__all__ = ["VERSION", "add_sampling", "add_server", "parse_option", "sampling_of"]

VERSION = version("seedance-sdk")

_NUMBERS = {
    "temperature": "0 always takes the likeliest token; more is more varied",
    "top_p": "keep the likeliest tokens up to this probability",
    "min_p": "keep tokens this likely, relative to the likeliest",
    "repetition_penalty": "above 1: repeat less",
    "presence_penalty": "above 0: say other things",
    "frequency_penalty": "above 0: repeat less, the more often it occurred",
}
_INTEGERS = {
    "top_k": "keep so many of the likeliest tokens",
    "max_tokens": "longest answer",
    "seed": "the same seed gives the same answer",
}
_TEXTS = {"durability": ("committed", "none"), "model": None}


def add_server(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say which server."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url", metavar="URL", help="ws://host:8080/v1/chat or wss://… [SEEDANCE_URL, else localhost]"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="better set by environment, flags are visible to others [SEEDANCE_API_KEY]",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how to sample; what is left out, the server chooses."""
    group = parser.add_argument_group("sampling")
    for kind, names in ((float, _NUMBERS), (int, _INTEGERS)):
        for name, words in names.items():
            flag = "--" + name.replace("_", "-")
            group.add_argument(flag, type=kind, metavar="N" if kind is int else "X", help=words)
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end the answer before this text; repeatable"
    )
    group.add_argument(
        "--durability", choices=("committed", "none"), help="none: the answer is lost with its connection"
    )
    group.add_argument("--model", metavar="NAME", help="refuse to be answered by another one")


def sampling_of(given: argparse.Namespace) -> Options:
    """What `add_sampling` added, as a request's options."""
    names = (*_NUMBERS, *_INTEGERS, *_TEXTS, "stop")
    return cast("Options", {name: value for name in names if (value := getattr(given, name)) is not None})


def parse_option(text: str) -> tuple[str, Any]:
    """Reads ``name=value`` as typed in a chat; an empty value is None, the server's choice.

    Raises:
        ValueError: There is no such option, or the value is none for it.
    """
    name, equals, value = text.partition("=")
    name, value = name.strip().replace("-", "_"), value.strip()
    known = (*_NUMBERS, *_INTEGERS, *_TEXTS)
    if name not in known or not equals:
        raise ValueError(f"say /set name=value, with one of {', '.join(known)}")
    if not value:
        return name, None
    try:
        return name, float(value) if name in _NUMBERS else int(value) if name in _INTEGERS else value
    except ValueError:
        raise ValueError(f"{name} must be a number, not {value!r}") from None
