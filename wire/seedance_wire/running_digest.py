"""The SHA-256 of a text that grows, as far as it is known.

Who takes up a stream in the middle, from a bookmark, never saw its beginning: then the digest of the whole
cannot be computed, and the server vouches for what came before by accepting the digest that RESUME showed.
Never a guess: a digest is either right or None.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["PREFIX_BYTES", "RunningDigest"]

PREFIX_BYTES = 16
"""How much of a digest RESUME and CHECKPOINT carry: enough that no two texts share it by chance."""


@define(eq=False)
class RunningDigest:
    """The digest of a stream's text so far; made without arguments, that of no text."""

    _hash: _Hash | None = field(factory=hashlib.sha256)
    _vouched: bytes | None = None

    @classmethod
    def of_unseen(cls, prefix: bytes | None) -> RunningDigest:
        """Returns that of a text which only others have seen.

        Args:
            prefix: The first 16 bytes of its digest, if they are known. They stand until the text grows.
        """
        return cls(hash=None, vouched=prefix)

    def update(self, text: bytes) -> None:
        """Takes the next piece of the text, in UTF-8."""
        if not text:
            return
        self._vouched = None
        if self._hash is not None:
            self._hash.update(text)

    @property
    def whole(self) -> bytes | None:
        """All 32 bytes, or None if the beginning was never seen."""
        return None if self._hash is None else self._hash.digest()

    @property
    def prefix(self) -> bytes | None:
        """The first 16 bytes, or None if they are not known."""
        return self._vouched if self._hash is None else self._hash.digest()[:PREFIX_BYTES]

    def copy(self) -> RunningDigest:
        """Returns one that goes on by itself from here."""
        return RunningDigest(hash=None if self._hash is None else self._hash.copy(), vouched=self._vouched)
