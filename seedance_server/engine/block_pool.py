"""Who owns which KV block: allocation by count, never by content.

A block holds the keys and values of `block_size` tokens for one *group* of layers; a sequence has one table
per group. A group of full-attention layers needs a block for each `block_size` tokens; a group of
sliding-window layers is a ring: after `ring` blocks it overwrites its oldest, so that it holds its window and
no more.

Invariants, checked by `check_integrity`: free + used == total, and a used block stands in exactly one table.
Pure Python: where the bytes live is the KV cache's business.
"""

from bisect import bisect_right
from collections.abc import Iterable

from attrs import define, field

__all__ = ["BlockPool", "BlockTable", "blocks_for"]

_ENDLESS = 2**63 - 1


def blocks_for(tokens: int, block_size: int, rings: Iterable[int | None]) -> int:
    """Blocks for a sequence of ``tokens`` tokens in a pool with these ``rings`` (see `BlockPool`)."""
    blocks = -(-tokens // block_size)
    return sum(blocks if ring is None else min(blocks, ring) for ring in rings)


@define(eq=False)
class BlockTable:
    """The blocks of one sequence.

    Attributes:
        groups: For each group of layers, the block ids in order of position. Position ``p`` of a ring of
            ``r`` blocks lies in entry ``(p // block_size) % r``.
    """

    groups: tuple[list[int], ...]

    @property
    def size(self) -> int:
        """Blocks held over all groups."""
        return sum(map(len, self.groups))


@define(eq=False, slots=False)
class BlockPool:
    """A fixed number of blocks.

    Args:
        total: Number of blocks.
        block_size: Tokens per block.
        rings: One entry per group of layers: the length of its ring in blocks, or None for full attention.
    """

    total: int
    block_size: int
    rings: tuple[int | None, ...] = (None,)
    _free: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.total - 1, -1, -1))  # popped from the end: low ids first

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks that some table holds."""
        return self.total - len(self._free)

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence, in tokens, that fits when it has the pool to itself."""
        if self.blocks_for(_ENDLESS) <= self.total:
            return _ENDLESS  # rings only, and all of them fit when they are closed
        return bisect_right(range(self.total * self.block_size + 1), self.total, key=self.blocks_for) - 1

    def new_table(self) -> BlockTable:
        """An empty table with this pool's groups."""
        return BlockTable(tuple([] for _ in self.rings))

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence of ``tokens`` tokens holds, over all groups."""
        return blocks_for(tokens, self.block_size, self.rings)

    def reserve(self, table: BlockTable, tokens: int) -> bool:
        """Grow ``table`` until it can hold ``tokens`` tokens, or leave all as it was.

        Returns:
            False where the free blocks don't suffice.
        """
        if self.blocks_for(tokens) - table.size > len(self._free):
            return False
        blocks = -(-tokens // self.block_size)
        for group, ring in zip(table.groups, self.rings, strict=True):
            wanted = blocks if ring is None else min(blocks, ring)
            group.extend(self._free.pop() for _ in range(wanted - len(group)))
        return True

    def release(self, table: BlockTable) -> None:
        """Take back all blocks of ``table``, leaving it empty; an empty table is fine."""
        for group in table.groups:
            self._free.extend(reversed(group))
            group.clear()

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Compare the free list with every live table.

        Args:
            tables: All tables that may hold blocks.

        Raises:
            AssertionError: A block is lost, owned twice, or both free and owned: our bug.
        """
        owned = [block for table in tables for group in table.groups for block in group]
        known = sorted(owned + self._free)
        if known != list(range(self.total)):
            raise AssertionError(f"{len(owned)} owned + {self.free_blocks} free of {self.total}: {known}")
