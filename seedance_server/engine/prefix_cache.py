"""What idle blocks still hold: which content may be used again, and which goes first when room is needed.

A block's content is named by its *key*: a hash over the tenant and all tokens from the beginning to the
block's last. So equal keys mean equal keys and values, a key of one tenant is none of another's, and a block
is never looked for without those before it. Each group of layers has its own block under the same key.

A block that no sequence holds stays *idle* under its key until its room is needed: the one that was idle
longest goes first. What the newest turn of a session left is kept a while longer: its blocks go only when
there are no others. The pool knows who holds blocks; this knows only names and order. Pure Python, and it has
no clock: times are told.
"""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeAlias

__all__ = ["BlockKey", "PrefixCache", "extend_keys"]

BlockKey: TypeAlias = bytes
_KEY_BYTES = 16
"""Collisions need some 2 ** 64 blocks; and nobody can aim at another tenant's keys, see `extend_keys`."""


def extend_keys(
    keys: list[BlockKey], tenant: str, token_ids: Sequence[int], block_size: int, blocks: int
) -> None:
    """Append the keys of full blocks until there are ``blocks`` of them.

    Args:
        keys: Those of the first blocks.
        tenant: Whose tokens; part of every key.
        token_ids: At least ``blocks * block_size``.
        block_size: Tokens per block.
        blocks: How many keys are wanted.
    """
    person = tenant.encode(errors="surrogatepass")
    for block in range(len(keys), blocks):
        tokens = array("q", token_ids[block * block_size : (block + 1) * block_size])
        before = keys[-1] if keys else blake2b(person, digest_size=_KEY_BYTES, person=b"tenant").digest()
        keys.append(blake2b(before + tokens.tobytes(), digest_size=_KEY_BYTES).digest())


class PrefixCache:
    """Names of blocks, and the order in which idle ones are given up.

    Args:
        groups: Groups of layers.
    """

    def __init__(self, groups: int) -> None:
        self._blocks: list[dict[BlockKey, int]] = [{} for _ in range(groups)]
        self._names: dict[int, tuple[int, BlockKey]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # longest idle first
        self._idle_kept: OrderedDict[int, None] = OrderedDict()
        self._sessions: OrderedDict[Hashable, tuple[float, tuple[int, ...]]] = OrderedDict()  # by expiry
        self._kept: dict[int, int] = {}  # by how many sessions each block is kept

    @property
    def idle(self) -> int:
        """Blocks that hold content and that nobody holds."""
        return len(self._idle) + len(self._idle_kept)

    def find(self, group: int, key: BlockKey) -> int | None:
        """The block of ``group`` with this content, idle or in use."""
        return self._blocks[group].get(key)

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds a block whose content is known."""
        return block in self._idle or block in self._idle_kept

    def is_named(self, block: int) -> bool:
        """Whether a block's content is known, so that it must not be overwritten."""
        return block in self._names

    def name(self, group: int, key: BlockKey, block: int) -> None:
        """Note what a block in use holds, unless another block is known to hold the same."""
        if key not in self._blocks[group] and block not in self._names:
            self._blocks[group][key] = block
            self._names[block] = (group, key)

    def put(self, block: int) -> bool:
        """Take a block that nobody holds any more; False if its content isn't known."""
        if block not in self._names:
            return False
        (self._idle_kept if block in self._kept else self._idle)[block] = None
        return True

    def take(self, block: int) -> None:
        """Hand an idle block out again, with its content."""
        (self._idle_kept if block in self._idle_kept else self._idle).pop(block)

    def evict(self) -> int:
        """Forget the content of the idle block that goes first; there must be one.

        Returns:
            The block.
        """
        while not self._idle:
            self._release(next(iter(self._sessions)))
        block, _ = self._idle.popitem(last=False)
        group, key = self._names.pop(block)
        del self._blocks[group][key]
        return block

    def keep(self, session: Hashable, blocks: Iterable[int], until_s: float) -> None:
        """Keep what a session's newest turn left, instead of what the one before had; times never go back."""
        named = tuple(block for block in blocks if block in self._names)
        for block in named:
            self._kept[block] = self._kept.get(block, 0) + 1
            if block in self._idle:
                del self._idle[block]
                self._idle_kept[block] = None
        if session in self._sessions:
            self._release(session)
        if named:
            self._sessions[session] = (until_s, named)

    def expire(self, now_s: float) -> None:
        """Treat what was kept until now like anything else."""
        while self._sessions:
            session, (until_s, _) = next(iter(self._sessions.items()))
            if until_s > now_s:
                return
            self._release(session)

    def check_integrity(self) -> set[int]:
        """Compare names, order and what is kept.

        Returns:
            The idle blocks.

        Raises:
            AssertionError: They disagree: our bug.
        """
        named = {
            block: (group, key) for group, blocks in enumerate(self._blocks) for key, block in blocks.items()
        }
        idle = self._idle.keys() | self._idle_kept.keys()
        kept: dict[int, int] = {}
        for _, blocks in self._sessions.values():
            for block in blocks:
                kept[block] = kept.get(block, 0) + 1
        if named != self._names or not idle <= named.keys() or kept != self._kept:
            raise AssertionError(
                f"{len(named)} of {len(self._names)} names, {len(idle)} idle, {len(kept)} kept"
            )
        if self._idle.keys() & kept.keys() or not self._idle_kept.keys() <= kept.keys():
            raise AssertionError("a block that is kept stands among those that aren't")
        return set(idle)

    def _release(self, session: Hashable) -> None:
        _, blocks = self._sessions.pop(session)
        for block in blocks:
            self._kept[block] -= 1
            if not self._kept[block]:
                del self._kept[block]
                if block in self._idle_kept:
                    del self._idle_kept[block]
                    self._idle[block] = None
