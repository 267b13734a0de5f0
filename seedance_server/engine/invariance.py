"""Looks, at start, whether a sequence's logits depend on its company, bit for bit.

No library promises that they don't: a kernel may add in another order for more rows, longer neighbours or a
prompt cut elsewhere. So one prompt is run alone, then in pieces beside others, computed anew and ahead of
its turn, through the very runner that will serve. What is seen is reported, never assumed; it holds for this
model, machine and number of threads.
"""

from collections.abc import Sequence as Series
from itertools import cycle

import torch

from seedance_server.engine.batch import Batch, Chunk
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.config import DeterministicName
from seedance_server.engine.errors import NotDeterministic
from seedance_server.engine.model_runner import ModelRunner
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest, Sequence

__all__ = ["find_variation", "prove_invariance"]

_PIECE = 23
_PROMPT_TOKENS = 9 * _PIECE  # longer than what some products sum up at once, such as 160 or 192 positions
_ANSWER_TOKENS = 3
_NEIGHBOURS = (1, 7, 30)  # rows beside it: for an even, a small and a large batch


def prove_invariance(
    wanted: DeterministicName, runner: ModelRunner, pool: BlockPool, *, vocab_size: int, longest_chunk: int
) -> str:
    """Look, and say in one line what was found.

    Args:
        wanted: "off" not to look.
        runner: Of the engine.
        pool: See `find_variation`, as for the rest.
        vocab_size: The same.
        longest_chunk: The same.

    Raises:
        NotDeterministic: It does depend, and "on" is wanted.
    """
    if wanted == "off":
        return "output may depend on what else runs: nothing else was asked for (--deterministic)"
    variation = find_variation(runner, pool, vocab_size=vocab_size, longest_chunk=longest_chunk)
    runner.trim()
    if variation is None:
        return "output doesn't depend on what else runs, as far as a test at start can tell"
    if wanted == "on":
        raise NotDeterministic(variation)
    return f"output may depend on what else runs: logits change when {variation}"


@torch.inference_mode()
def find_variation(
    runner: ModelRunner, pool: BlockPool, *, vocab_size: int, longest_chunk: int
) -> str | None:
    """Compare a prompt's logits alone with those in company. Takes some 750 rows through the model.

    Args:
        runner: Of the engine.
        pool: Its blocks, none of them in use; all are given back.
        vocab_size: Token ids go from 0 to one below it.
        longest_chunk: Most tokens of one sequence in one step.

    Returns:
        What changed the logits, in a few words; None if nothing did.
    """
    room = min(_PROMPT_TOKENS + _ANSWER_TOKENS, pool.capacity_tokens // 2)
    ids = [(11 + 7 * place) % vocab_size for place in range(room)]
    prompt = max(1, room - _ANSWER_TOKENS)
    ones = [1] * (room - prompt)
    # Where the longer pieces end shorter ones do, too: there logits are compared, and at the answer's tokens.
    usual = [*_cut(prompt, min(longest_chunk, 3 * _PIECE)), *ones]
    pieces = [*_cut(prompt, min(longest_chunk, _PIECE)), *ones]
    trial = _Trial(runner, pool, vocab_size)
    alone = trial.run(ids, usual)

    def varies(counts: list[int], *neighbours: int) -> bool:
        return not trial.agrees(alone, trial.run(ids, counts, neighbours or (0,)))

    if varies(pieces, 0, *_NEIGHBOURS):  # all at once; what it was is asked only where something was
        if varies(pieces):
            return "prompts are cut elsewhere"
        rows = next((rows for rows in _NEIGHBOURS if varies(usual, rows)), "some")
        return f"{rows} more rows run beside it"
    again, ahead = trial.run_again(ids, prompt, longest_chunk)
    if not trial.agrees(alone, again):
        return "it is computed again"
    if not trial.agrees(alone, ahead):
        return "several of its tokens run at once"
    return None


def _cut(tokens: int, longest: int) -> list[int]:
    return [min(longest, tokens - start) for start in range(0, tokens, longest)]


class _Trial:
    """Runs sequences through the engine's own runner; logits are kept by position."""

    def __init__(self, runner: ModelRunner, pool: BlockPool, vocab_size: int) -> None:
        self._runner = runner
        self._pool = pool
        self._vocab_size = vocab_size

    def run(
        self, ids: list[int], counts: Series[int], neighbours: Series[int] = (0,)
    ) -> dict[int, torch.Tensor]:
        """Run ``ids`` in chunks of ``counts`` tokens, beside so many new sequences of one token, in turn."""
        sequence = self._open(ids)
        logits = self._run_chunks(sequence, counts, neighbours)
        self._pool.release(sequence.table)
        return logits

    def run_again(
        self, ids: list[int], prompt: int, longest_chunk: int
    ) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
        """Run the prompt in the longest chunks, then its last token anew, with what follows it as a draft.

        Returns:
            Logits of the chunks' ends; and those of the last token and its draft, which ran at once.
        """
        sequence = self._open(ids)
        again = self._run_chunks(sequence, _cut(prompt, longest_chunk), (0,))
        del sequence.token_ids[prompt:]
        sequence.computed -= 1
        draft = tuple(ids[prompt : prompt + longest_chunk - 1])
        rows = self._runner.run(Batch.of([Chunk.of(sequence, 1, draft)]))
        self._pool.release(sequence.table)
        return again, {prompt - 1 + ahead: row.clone() for ahead, row in enumerate(rows)}

    def _run_chunks(
        self, sequence: Sequence, counts: Series[int], neighbours: Series[int]
    ) -> dict[int, torch.Tensor]:
        ids = list(sequence.token_ids)
        logits: dict[int, torch.Tensor] = {}
        for count, beside in zip(counts, cycle(neighbours), strict=False):
            # The chunk's last token counts as the sequence's last: its logits are wanted.
            del sequence.token_ids[sequence.computed + count :]
            others = [self._open([(5 + 3 * n) % self._vocab_size]) for n in range(beside)]
            others = [other for other in others if other.table.size]
            chunk = Chunk.of(sequence, count)
            batch = Batch.of([chunk, *(Chunk.of(other, 1) for other in others)])
            logits[chunk.start + count - 1] = self._runner.run(batch)[batch.sampled.index(chunk)].clone()
            sequence.computed += count
            sequence.token_ids += ids[sequence.computed :]
            for other in others:
                self._pool.release(other.table)
        return logits

    def agrees(self, one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
        """Whether the logits of all positions that both have are the same bits."""
        return all(torch.equal(one[position], other[position]) for position in one.keys() & other.keys())

    def _open(self, ids: list[int]) -> Sequence:
        request = GenerationRequest(id=0, prompt_ids=tuple(ids), params=SamplingParams(), arrival_s=0.0)
        sequence = Sequence(request, order=0, seed=0, limit=len(ids) + 1, table=self._pool.new_table())
        self._pool.reserve(sequence.table, len(ids))  # a neighbour that has no room stays away
        return sequence
