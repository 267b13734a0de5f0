"""What a reader has received of a stream so far: text, log probabilities, and how it ended.

Outlives the reading, so that a conversation can tell what was said in it.
"""

from __future__ import annotations

from seedance_sdk.completion import Chunk, TokenLogprob

__all__ = ["Received"]


class Received:
    """The pieces of one stream.

    Args:
        first_id: The id before the first piece.
        first_byte: The offset of the first piece.

    Attributes:
        last: The last piece; None before the first.
    """

    def __init__(self, first_id: int, first_byte: int) -> None:
        self.last: Chunk | None = None
        self._before_last: Chunk | None = None
        self._first_id, self._first_byte = first_id, first_byte
        self._pieces: dict[int, str] = {}  # by id
        self._logprobs: dict[int, tuple[TokenLogprob, ...]] = {}

    @property
    def text(self) -> str:
        """All pieces joined."""
        return "".join(tuple(self._pieces.values()))

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Of all pieces."""
        return tuple(entry for entries in self._logprobs.values() for entry in entries)

    @property
    def last_id(self) -> int:
        """Id of the last piece."""
        return self.last.id if self.last else self._first_id

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the answer up to the end of the last piece."""
        return self.last.offset + len(self.last.delta.encode()) if self.last else self._first_byte

    @property
    def whole(self) -> bool:
        """Whether the answer has ended."""
        return self.last is not None and self.last.finish_reason is not None

    def add(self, chunk: Chunk) -> None:
        """A piece came."""
        self._pieces[chunk.id] = chunk.delta
        if chunk.logprobs:
            self._logprobs[chunk.id] = chunk.logprobs
        self._before_last, self.last = self.last, chunk

    def take_back(self, chunk: Chunk) -> None:
        """Its reader never got it."""
        self._pieces.pop(chunk.id, None)
        self._logprobs.pop(chunk.id, None)
        if self.last is chunk:
            self.last = self._before_last
