r"""Blocks of lines, the framing of the raw encoding (S13): like Server-Sent Events, but exact.

    event: delta
    id: 1:1:3:11
    data: first line of the text
    data: second line

A block is lines of ``name: value`` up to an empty line. Only LF ends a line, so every other character, CR
too, is carried as it is; a text of several lines stands in as many ``data`` lines, joined again by LF.
Exactly one space follows the colon and is not part of the value. Lossless for every text, whatever its spaces
and line breaks, and readable at any chunking.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from attrs import frozen

from .errors import CloseCode, DecodeError

__all__ = ["Block", "BlockParser", "write_block"]


@frozen(kw_only=True)
class Block:
    """One block.

    Attributes:
        event: The type of the message or frame; holds no LF.
        data: Any text.
        id: For frames ``stream:epoch:id:offset``, otherwise None; holds no LF.
        extra: Further lines by name, in writing order; no LF in any value.
    """

    event: str
    data: str
    id: str | None = None
    extra: tuple[tuple[str, str], ...] = ()


def write_block(block: Block) -> str:
    """Writes a block, its closing empty line included."""
    lines = [f"event: {block.event}"]
    if block.id is not None:
        lines.append(f"id: {block.id}")
    lines += [f"{name}: {value}" for name, value in block.extra]
    lines += [f"data: {line}" for line in block.data.split("\n")]
    return "\n".join(lines) + "\n\n"


class BlockParser:
    """Reads blocks from text or UTF-8 that arrives in pieces of any size.

    Args:
        max_block_chars: Longest block to read, in characters; bounds what is kept between pieces.
    """

    def __init__(self, max_block_chars: int = 262_144) -> None:
        self._max_block_chars = max_block_chars
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._rest: list[str] = []  # pieces of the line that is not complete
        self._lines: list[str] = []  # complete lines of the block that is not complete
        self._chars = 0  # in both

    @property
    def between_blocks(self) -> bool:
        """Whether everything fed so far was whole blocks."""
        return not self._chars and not self._decode.getstate()[0]

    def feed(self, data: bytes | str) -> Sequence[Block]:
        """Takes the next piece and returns the blocks that it completes.

        Raises:
            DecodeError: It is not UTF-8, or a line is no ``name: value``, or a block too long, without an
                event or with a line that may stand once standing twice. The parser is of no use after that.
        """
        if isinstance(data, bytes):
            try:
                data = self._decode.decode(data)
            except UnicodeDecodeError:
                raise DecodeError("not UTF-8", CloseCode.INVALID_DATA) from None
        blocks: list[Block] = []
        *complete, rest = data.split("\n")
        for line_end in complete:
            line = "".join((*self._rest, line_end))
            self._rest.clear()
            self._count(len(line_end) + 1)
            if line:
                self._lines.append(line)
            else:
                blocks.append(_read_block(self._lines))
                self._lines.clear()
                self._chars = 0
        if rest:
            self._count(len(rest))
            self._rest.append(rest)
        return blocks

    def _count(self, chars: int) -> None:
        self._chars += chars
        if self._chars > self._max_block_chars:
            raise DecodeError(
                f"a block of more than {self._max_block_chars} characters", CloseCode.MESSAGE_TOO_BIG
            )


def _read_block(lines: Sequence[str]) -> Block:
    event = id_ = None
    data: list[str] = []
    extra: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(": ")
        if not colon:
            raise DecodeError("a line is not a name, a colon, a space and a value")
        if name == "data":
            data.append(value)
        elif name == "event" and event is None:
            event = value
        elif name == "id" and id_ is None:
            id_ = value
        elif name in {"event", "id"} or name in extra:
            raise DecodeError(f"a block with two lines of {name[:20]}")
        else:
            extra[name] = value
    if event is None or not data:
        raise DecodeError("a block without event or data")
    return Block(event=event, id=id_, data="\n".join(data), extra=tuple(extra.items()))
