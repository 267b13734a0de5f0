"""How many blocks the KV pool gets: what the operator gives it, or a share of the memory there is.

The invariant: never more than could be used, never more than is available, never less than serves a short
prompt; what can't be had is refused at the start with the numbers that it takes to change it.
"""

from seedance_server.engine.block_pool import BlockPool, blocks_for
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.errors import InsufficientMemory, KvPoolTooSmall
from seedance_server.engine.kv_cache import KvGeometry

__all__ = ["describe_pool", "pool_blocks"]

_DEFAULT_SHARE_OF_MEMORY = 2
"""The pool takes one part in this many of the available memory; activations and other processes need some."""


def pool_blocks(geometry: KvGeometry, config: EngineConfig, context: int, available_bytes: int) -> int:
    """Blocks in the pool.

    Args:
        geometry: What the model keeps per token.
        config: The engine's settings.
        context: Longest prompt plus answer in tokens.
        available_bytes: What the device has left.

    Raises:
        InsufficientMemory: There is less than the pool should have, or than it must.
        KvPoolTooSmall: The size that the config gives it holds no sequence.
    """
    block_bytes = geometry.block_bytes(config.block_size)
    rings = geometry.rings(config.block_size, config.prefill_budget_tokens)
    memory = config.kv_memory_bytes or available_bytes // _DEFAULT_SHARE_OF_MEMORY
    if memory > available_bytes:
        raise InsufficientMemory(memory, available_bytes)
    least_bytes = blocks_for(2 * config.block_size, config.block_size, rings) * block_bytes
    if memory < least_bytes:
        if config.kv_memory_bytes is None:
            raise InsufficientMemory(_DEFAULT_SHARE_OF_MEMORY * least_bytes, available_bytes)
        raise KvPoolTooSmall(least_bytes, memory)
    useful = config.max_sequences * blocks_for(context, config.block_size, rings)
    return min(memory // block_bytes, useful)


def describe_pool(pool: BlockPool, geometry: KvGeometry, context: int) -> str:
    """One line for whoever starts the server.

    Args:
        pool: The pool.
        geometry: What the model keeps per token.
        context: The model's or the operator's limit on prompt plus answer, in tokens.
    """
    size_mib = pool.total * geometry.block_bytes(pool.block_size) / 2**20
    line = f"KV pool of {size_mib:,.1f} MiB in {pool.total:,} blocks"
    if pool.capacity_tokens < context:
        return (
            f"{line}: it shortens the context to {pool.capacity_tokens:,} of {context:,} tokens (--kv-memory)"
        )
    fitting = pool.total // pool.blocks_for(context)
    return f"{line}: {fitting:,} sequences of the whole context of {context:,} tokens"
