"""Weighted rendezvous hashing, pure: who is nearest to a key.

Each member gets a number of its own for each key, so when one leaves only its keys move, and each to its
second choice. Shares of the keys are as the weights. Every process with the same members agrees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b

__all__ = ["ranking"]


def ranking(key: str, weights: Mapping[str, float]) -> list[str]:
    """Returns all members, the nearest to ``key`` first.

    Args:
        key: Anything that should come to the same member each time.
        weights: Of the members, each above 0; their shares of all keys are in proportion.
    """
    return sorted(weights, key=lambda member: (_distance(key, member) / weights[member], member))


def _distance(key: str, member: str) -> float:
    """Exponentially distributed with mean 1: divided by weights, the least is each with its share."""
    digest = blake2b(f"{len(key)}:{key}{member}".encode(errors="surrogatepass"), digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "big") + 0.5) / 2**64)
