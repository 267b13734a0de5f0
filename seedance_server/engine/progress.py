"""How whoever loads a model is told what is being done.

A stage is a line of words, told when it begins; one that takes long tells the share that is done, with the
same line. It knows nothing of what the stages do, nor of who listens.
"""

from typing import Protocol

__all__ = ["Progress", "silent"]


class Progress(Protocol):
    """Told of stages, on the thread that loads."""

    def __call__(self, line: str, share: float | None = None) -> None:
        """A stage begins, or goes on.

        Args:
            line: What it does, in words.
            share: How much of it is done, from 0 to 1, where that is known.
        """


def silent(line: str, share: float | None = None) -> None:
    """A `Progress` for whoever doesn't want to know."""
