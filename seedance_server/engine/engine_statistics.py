"""What an engine counts. Pure Python."""

from attrs import frozen

__all__ = ["EngineStatistics"]


@frozen(kw_only=True)
class EngineStatistics:
    """The engine at one moment; counters are since its start.

    Attributes:
        running: Sequences with blocks that take part in steps.
        waiting: Sequences without blocks that will.
        paused: Sequences that don't, with or without blocks.
        total_blocks: Size of the pool.
        used_blocks: Blocks in some sequence's table.
        idle_blocks: Blocks in none, whose content may be used again.
        steps: Forward passes.
        computed_tokens: Rows run through the model: prompts, decodes, and what was computed again.
        generated_tokens: Tokens sampled.
        preemptions: How often a sequence lost its blocks.
        queried_tokens: Tokens of prompts that began.
        reused_tokens: Tokens of prompts that were in the pool already and weren't computed again.
        drafted_tokens: Rows of ``computed_tokens`` that were run ahead of their turn.
        accepted_tokens: Those of them that were right: steps saved.
        recorded_steps: Those of ``steps`` that ran as a CUDA graph.
        memory_failures: Steps that a device had no memory for; they were run again in halves.
    """

    running: int
    waiting: int
    paused: int
    total_blocks: int
    used_blocks: int
    idle_blocks: int
    steps: int
    computed_tokens: int
    generated_tokens: int
    preemptions: int
    queried_tokens: int
    reused_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    recorded_steps: int
    memory_failures: int
