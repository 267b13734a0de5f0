"""Who holds which KV block, and which blocks can be shared.

A block holds the keys and values of `block_size` tokens for one *group* of layers; a sequence has one table
per group. A group of full-attention layers needs a block for each `block_size` tokens; a group of
sliding-window layers is a ring: after `ring` blocks it goes on where its oldest was, so that it holds its
window and no more. Full blocks may stand in several tables, since nobody writes to them: where a ring comes
round to a block that others hold, or that is known by its content, it takes another one in its place. So
sharing copies nothing, and a table's form doesn't show it.

Invariants, checked by `check_integrity`: free + idle + used == total, and a block is held as often as it
stands in tables. Pure Python: where the bytes live is the KV cache's business.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from attrs import define, field

from seedance_server.engine.prefix_cache import BlockKey, PrefixCache

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
        tokens: For so many tokens there are blocks.
    """

    groups: tuple[list[int], ...]
    tokens: int = 0

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
            A ring must hold the blocks of a window and of the longest chunk after it, wherever they begin.
        windows: For each group how many positions a row sees, or None for all; () where nothing is reused.
    """

    total: int
    block_size: int
    rings: tuple[int | None, ...] = (None,)
    windows: tuple[int | None, ...] = ()
    _free: list[int] = field(init=False)
    _cache: PrefixCache = field(init=False)
    _holders: dict[int, int] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._cache = PrefixCache(len(self.rings))
        self._free = list(range(self.total - 1, -1, -1))  # popped from the end: low ids first

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, with known content or without."""
        return len(self._free) + self._cache.idle

    @property
    def reuses(self) -> bool:
        """Whether blocks are known by their content."""
        return bool(self.windows)

    @property
    def idle_blocks(self) -> int:
        """Blocks that nobody holds and whose content may be used again."""
        return self._cache.idle

    @property
    def used_blocks(self) -> int:
        """Blocks that some table holds."""
        return self.total - self.free_blocks

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
        if tokens <= table.tokens:
            return True
        if self.blocks_for(tokens) - table.size > self.free_blocks:
            return False
        blocks = -(-tokens // self.block_size)
        table.tokens = blocks * self.block_size
        for group, ring in zip(table.groups, self.rings, strict=True):
            wanted = blocks if ring is None else min(blocks, ring)
            group.extend(self._allocate() for _ in range(wanted - len(group)))
        return True

    def find_prefix(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first blocks with these keys can be used again, for a row right behind them.

        Of layers with a window only the blocks are needed that this row and those after it see.
        """
        if not self.reuses:
            return 0
        find = self._cache.find
        full = [group for group, window in enumerate(self.windows) if window is None]
        slid = [(group, window) for group, window in enumerate(self.windows) if window is not None]
        runs = [0] * len(slid)  # how many blocks in a row are there, up to the one looked at
        usable = 0
        for block, key in enumerate(keys):
            if any(find(group, key) is None for group in full):
                break
            for index, (group, _) in enumerate(slid):
                runs[index] = 0 if find(group, key) is None else runs[index] + 1
            if all(
                run > block - self._first_seen(block + 1, w) for run, (_, w) in zip(runs, slid, strict=True)
            ):
                usable = block + 1
        return usable

    def blocks_in_use(self, keys: Sequence[BlockKey]) -> int:
        """Of the blocks that a sequence with these keys would share, how many are held already."""
        return sum(not self._cache.is_idle(block) for _, _, block in self._shared(keys))

    def open(self, table: BlockTable, tokens: int, keys: Sequence[BlockKey]) -> bool:
        """Fill an empty ``table`` for ``tokens`` tokens, its first blocks being those with ``keys``.

        Args:
            table: Nothing is in it.
            tokens: Beyond those blocks at least one.
            keys: As many as `find_prefix` said.

        Returns:
            False where the free blocks don't suffice; then all is as it was.
        """
        if self.blocks_for(tokens) - self.blocks_in_use(keys) > self.free_blocks:
            return False
        shared: list[dict[int, int]] = [{} for _ in self.rings]
        for group, entry, block in self._shared(keys):
            if self._cache.is_idle(block):
                self._cache.take(block)
            self._holders[block] = self._holders.get(block, 0) + 1
            shared[group][entry] = block
        blocks = -(-tokens // self.block_size)
        table.tokens = blocks * self.block_size
        for group, ring in enumerate(self.rings):
            for entry in range(blocks if ring is None else min(blocks, ring)):
                own = shared[group].get(entry)
                table.groups[group].append(self._allocate() if own is None else own)
        return True

    def begin(self, table: BlockTable, start: int, stop: int) -> bool:
        """Make positions ``start`` to ``stop`` of a table writable, for which it has blocks.

        Where a ring comes round to a block that must stay as it is, another one takes its place.

        Returns:
            False where the free blocks don't suffice; what was made writable stays so.
        """
        for block in range(-(-start // self.block_size), -(-stop // self.block_size)):
            for group, ring in zip(table.groups, self.rings, strict=True):
                if ring is None:
                    continue
                old = group[block % ring]
                if self._holders[old] == 1 and not self._cache.is_named(old):
                    continue
                if self._holders[old] > 1 and not self.free_blocks:
                    return False
                self._drop(old)
                group[block % ring] = self._allocate()
        return True

    def record(self, table: BlockTable, block: int, key: BlockKey) -> None:
        """Note that the table's block number ``block`` is complete, and what it holds."""
        if self.reuses:
            for group, ring in enumerate(self.rings):
                entry = block if ring is None else block % ring
                self._cache.name(group, key, table.groups[group][entry])

    def keep(self, session: tuple[str, str], table: BlockTable, until_s: float) -> None:
        """Let the known blocks of ``table`` go last until then, and no longer what the session had before."""
        self._cache.keep(session, (block for group in table.groups for block in group), until_s)

    def expire(self, now_s: float) -> None:
        """End the keeping of what was kept until now."""
        self._cache.expire(now_s)

    def release(self, table: BlockTable) -> None:
        """Take back all blocks of ``table``, leaving it empty; an empty table is fine."""
        for group in table.groups:
            for block in reversed(
                group
            ):  # the end of a text goes before its beginning, which others may share
                self._drop(block)
            group.clear()
        table.tokens = 0

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Compare the books with every live table.

        Args:
            tables: All tables that may hold blocks.

        Raises:
            AssertionError: A block is lost, held more or less often than it stands in tables, or free or idle
                and held: our bug.
        """
        held: dict[int, int] = {}
        for table in tables:
            for group in table.groups:
                for block in group:
                    held[block] = held.get(block, 0) + 1
        idle = self._cache.check_integrity()
        if held != self._holders:
            raise AssertionError(f"{len(held)} blocks stand in tables, {len(self._holders)} are held")
        known = sorted([*held, *idle, *self._free])
        if known != list(range(self.total)):
            raise AssertionError(
                f"{len(held)} held + {len(idle)} idle + {len(self._free)} free of {self.total}: {known}"
            )

    def _shared(self, keys: Sequence[BlockKey]) -> Iterator[tuple[int, int, int]]:
        """(group, entry in its table, block) of what a sequence that begins with these keys shares."""
        for group, (ring, window) in enumerate(zip(self.rings, self.windows, strict=False)):
            first = 0 if window is None else self._first_seen(len(keys), window)
            for number in range(first, len(keys)):
                block = self._cache.find(group, keys[number])
                assert block is not None, "these keys weren't found"  # noqa: S101
                yield group, number if ring is None else number % ring, block

    def _first_seen(self, blocks: int, window: int) -> int:
        """Number of the first block that the row behind ``blocks`` blocks sees; ``blocks`` for none."""
        return min(blocks, max(0, blocks * self.block_size - window + 1) // self.block_size)

    def _allocate(self) -> int:
        block = self._free.pop() if self._free else self._cache.evict()
        self._holders[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self._holders[block] -= 1
        if not self._holders[block]:
            del self._holders[block]
            if not self._cache.put(block):
                self._free.append(block)
