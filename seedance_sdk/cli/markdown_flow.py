"""Markdown that is shown while it comes: finished blocks leave, the last one is still open.

A block is what an empty line ends, outside a fence of code; so a paragraph, a list or a listing is laid out
once, when it is whole, and what is still growing is small. Pure: knows no terminal.
"""

from __future__ import annotations

import re

__all__ = ["MarkdownFlow"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkdownFlow:
    """Cuts a growing text into blocks.

    Attributes:
        open: What hasn't been given out: the block that is still growing.
    """

    def __init__(self) -> None:
        self.open = ""
        self._lines: list[str] = []  # whole ones of the open block
        self._fence: str | None = None

    def push(self, text: str) -> list[str]:
        """Takes more text; returns the blocks that are finished now."""
        *whole, rest = (self.open[sum(map(len, self._lines)) :] + text).split("\n")
        finished = []
        for line in whole:
            self._lines.append(f"{line}\n")
            self._note_fence(line)
            if not line.strip() and self._fence is None:
                block = "".join(self._lines)
                self._lines = []
                if block.strip():
                    finished.append(block)
        self.open = "".join(self._lines) + rest
        return finished

    def end(self) -> str:
        """Takes the last block; there will be no more text."""
        rest, self.open, self._lines, self._fence = self.open, "", [], None
        return rest

    def _note_fence(self, line: str) -> None:
        match = _FENCE.match(line)
        if match is None:
            return
        if self._fence is None:
            self._fence = match[1]
        elif match[1].startswith(self._fence) and not line.strip(" `~"):
            self._fence = None
