"""The optional features of a connection, by the names that HELLO and WELCOME carry.

A client offers, the server answers with those that hold; whoever leaves one out is spoken to as if it did not
exist. Which of them an encoding can carry at all is known to its codec.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PIECES", "ZSTD", "agreed_capabilities"]

PIECES = "pieces"
"""Frames travel without the numbers that their reader can derive; see `piece_reader.py`."""

ZSTD = "zstd"
"""Either side may compress what it sends; see `compression.py`."""


def agreed_capabilities(
    offered: Iterable[str], available: Iterable[str], *, compression: bool = True
) -> tuple[str, ...]:
    """Returns what holds on a connection, for its WELCOME.

    Args:
        offered: By the client, known or not.
        available: In this encoding.
        compression: Whether this end is willing to compress.
    """
    wanted = frozenset(offered) if compression else frozenset(offered) - {ZSTD}
    return tuple(sorted(wanted & frozenset(available)))
