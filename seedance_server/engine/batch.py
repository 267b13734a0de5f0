"""What one step computes: a few tokens of each of several sequences, side by side.

The order of chunks is the order of rows: chunks of a single token first (they attend together, in one call),
then longer ones. Pure Python: the runner turns a batch into tensors and knows of no scheduler.
"""

from collections.abc import Iterable
from typing import Self

from attrs import frozen

from seedance_server.engine.sequence import Sequence

__all__ = ["Batch", "Chunk"]


@frozen(eq=False)
class Chunk:
    """Tokens ``start`` to ``start + count`` of one sequence, the last of which may be a draft.

    Attributes:
        sequence: Whose tokens; its table holds blocks for all of them.
        start: Position of the first one; the keys and values of all earlier ones are in the blocks.
        count: How many, at least 1.
        samples: Whether the chunk reaches the sequence's last token, so that a next one is sampled.
        draft: Tokens behind that last one; a next one is sampled after each of them, too.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    draft: tuple[int, ...] = ()

    @classmethod
    def of(cls, sequence: Sequence, count: int, draft: tuple[int, ...] = ()) -> Self:
        """The next ``count`` tokens of ``sequence``, and a draft if they are its last."""
        samples = count == sequence.remaining
        return cls(sequence, sequence.computed, count + len(draft), samples, draft)

    @property
    def token_ids(self) -> list[int]:
        """The chunk's tokens."""
        own = self.sequence.token_ids[self.start : self.start + self.count - len(self.draft)]
        return [*own, *self.draft]

    @property
    def sampled_rows(self) -> int:
        """How many of the chunk's rows, the last ones, have their logits wanted."""
        return 1 + len(self.draft) if self.samples else 0


@frozen(eq=False)
class Batch:
    """The chunks of one step.

    Attributes:
        singles: Chunks of one token: decodes, and prompts of which one token was left.
        spans: Longer chunks.
    """

    singles: tuple[Chunk, ...]
    spans: tuple[Chunk, ...]

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> Self:
        """Put chunks of one token first; otherwise keep the order."""
        ordered = sorted(chunks, key=lambda chunk: chunk.count > 1)  # stable
        singles = sum(chunk.count == 1 for chunk in ordered)
        return cls(tuple(ordered[:singles]), tuple(ordered[singles:]))

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks in the order of their rows."""
        return self.singles + self.spans

    @property
    def sampled(self) -> tuple[Chunk, ...]:
        """The chunks with rows whose logits are wanted, in the order of their rows."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)

    @property
    def tokens(self) -> int:
        """Rows over all chunks."""
        return len(self.singles) + sum(chunk.count for chunk in self.spans)
