import pytest
import torch

from seedance_server.engine import invariance
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.errors import NotDeterministic
from seedance_server.engine.invariance import find_variation
from tests.engine.driving import make_engine
from tests.tiny_models import KINDS


class _ExactRunner:
    """Logits follow from the tokens so far, but where `changes` says that company shakes them."""

    def __init__(self, changes=lambda _batch: False):
        self._changes = changes

    def run(self, batch):
        rows = []
        for chunk in batch.sampled:
            ids = [*chunk.sequence.token_ids[: chunk.start], *chunk.token_ids]
            ends = range(len(ids) - chunk.sampled_rows, len(ids))
            rows += [hash(tuple(ids[: end + 1])) % 2**20 for end in ends]
        logits = torch.tensor(rows, dtype=torch.float32)[:, None] + torch.arange(5.0)
        return torch.nextafter(logits, logits + 1) if self._changes(batch) else logits


def _look(runner, *, blocks=200, longest_chunk=256):
    pool = BlockPool(total=blocks, block_size=4)
    found = find_variation(runner, pool, vocab_size=384, longest_chunk=longest_chunk)
    assert pool.used_blocks == 0, "all blocks are given back"
    return found


@pytest.mark.parametrize(("blocks", "longest_chunk"), [(200, 256), (200, 16), (200, 1), (18, 256), (4, 8)])
def test_no_variation_is_found_where_there_is_none(blocks, longest_chunk):
    """Also where chunks are short, or the pool holds few neighbours or half of the prompt."""
    assert _look(_ExactRunner(), blocks=blocks, longest_chunk=longest_chunk) is None


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (lambda batch: len(batch.chunks) == 2, "1 more rows run beside it"),
        (lambda batch: len(batch.chunks) == 8, "7 more rows run beside it"),
        (lambda batch: len(batch.chunks) == 31, "30 more rows run beside it"),
        (lambda batch: batch.tokens == 21, "prompts are cut elsewhere"),
        (lambda batch: batch.tokens == 70, "it is computed again"),
        (lambda batch: any(chunk.draft for chunk in batch.chunks), "several of its tokens run at once"),
    ],
)
def test_variation_of_a_single_bit_is_found_and_named(changes, found):
    """Whatever depends on company shows, wherever it does."""
    assert _look(_ExactRunner(changes)) == found


@pytest.mark.parametrize("kind", KINDS)
def test_engine_s_own_runner_is_looked_at_without_a_trace(kind, load_tiny):
    """What is found is the machine's business; the pool is as before, and the same is found again."""
    engine = make_engine(load_tiny(kind))
    found = [
        find_variation(engine._runner, engine._pool, vocab_size=384, longest_chunk=256) for _ in range(2)
    ]
    assert found[0] == found[1]
    engine.check_integrity()
    assert engine.statistics().used_blocks == 0


def test_engine_serves_in_spite_of_dependence_unless_told_otherwise(load_tiny, monkeypatch):
    """ "auto" says what it saw, "on" refuses, "off" neither looks nor pads."""
    monkeypatch.setattr(invariance, "find_variation", lambda *_, **__: "it is Monday")
    auto, on, off = (make_engine(load_tiny("llama"), deterministic=d) for d in ("auto", "on", "off"))
    assert auto.prove_invariance().endswith("logits change when it is Monday")
    with pytest.raises(NotDeterministic, match="it is Monday"):
        on.prove_invariance()
    assert "nothing else was asked for" in off.prove_invariance()
    assert [engine._runner._least_rows for engine in (auto, on, off)] == [2, 2, 1]
    monkeypatch.setattr(invariance, "find_variation", lambda *_, **__: None)
    assert "doesn't depend" in on.prove_invariance()
