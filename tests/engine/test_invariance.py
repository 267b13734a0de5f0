import pytest
import torch
from hypothesis import given

from seedance_server.engine import invariance
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.errors import NotDeterministic
from seedance_server.engine.invariance import find_variation
from seedance_server.engine.model_loader import load_model
from seedance_server.engine.sequence import FinishReason
from tests.engine.driving import (
    NEW_TOKENS,
    PROMPTS,
    Answer,
    collect,
    drive,
    greedy_requests,
    ids_of,
    make_engine,
    make_request,
)
from tests.engine_strategies import engine_histories
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
        (lambda batch: batch.tokens == 23 + 7, "some more rows run beside it"),
        (lambda batch: batch.tokens == 23, "prompts are cut elsewhere"),
        (lambda batch: batch.tokens == 207, "it is computed again"),
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
    threads = torch.get_num_threads()
    rows = [engine._runner._padding.padded_rows(1) for engine in (auto, on, off)]
    assert rows == [2, 4 * threads, 1]
    monkeypatch.setattr(invariance, "find_variation", lambda *_, **__: None)
    assert "doesn't depend" in on.prove_invariance()


# ---- what it comes to: the same answers in any company


@pytest.mark.parametrize("kind", KINDS)
def test_engine_answers_the_same_when_requests_arrive_one_by_one(kind, load_tiny, reference):
    """Joining late and leaving early disturbs nobody."""
    engine = make_engine(load_tiny(kind), prefill_budget_tokens=16)
    arrivals = dict(zip(range(0, 50, 7), greedy_requests(), strict=False))
    answers = {}
    for step in range(200):
        if step in arrivals:
            engine.add(arrivals[step])
        collect(engine, answers)
    assert ids_of(answers) == reference[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_engine_answers_the_same_when_the_pool_holds_little_more_than_one(kind, load_tiny, reference):
    """Preempted sequences lose time, never a token: the pool has room for about 1.5 of the longest."""
    model = load_tiny(kind)
    engine = make_engine(model, prefill_budget_tokens=16, blocks=60 if kind == "gemma3" else 36)
    assert ids_of(drive(engine, greedy_requests())) == reference[kind]
    assert engine.statistics().preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_engine_answers_the_same_when_a_sequence_is_paused_and_evicted(kind, load_tiny, reference):
    """A stalled reader's sequence gives up its blocks under pressure and goes on as if nothing had been."""
    engine = make_engine(load_tiny(kind), blocks=60 if kind == "gemma3" else 36)

    def stall(step):
        if step == 3:
            engine.pause(0)
            engine.pause(1)
        if step == 40:
            assert engine.statistics().preemptions > 0
            engine.resume(0)
            engine.resume(1)

    assert ids_of(drive(engine, greedy_requests(), before=stall)) == reference[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(history=engine_histories(len(PROMPTS)))
def test_engine_answers_the_same_in_any_history(kind, history, load_tiny, reference):
    """Any mix of arrivals, pauses, resumes and cancels on a scarce pool leaves every answer as it is."""
    engine = make_engine(load_tiny(kind), blocks=60 if kind == "gemma3" else 36, prefill_budget_tokens=11)
    requests, started = greedy_requests(), set()
    answers: dict[int, Answer] = {}
    actions = {"pause": engine.pause, "resume": engine.resume, "cancel": engine.cancel}
    for action, index, steps in history:
        if action == "add":
            if index not in started:
                started.add(index)
                engine.add(requests[index])
        else:
            actions[action](index)
        for _ in range(steps):
            collect(engine, answers)
    for index in started:
        engine.resume(index)
    for index, rest in drive(engine).items():
        answer = answers.setdefault(index, Answer())
        answer.token_ids += rest.token_ids
        answer.finish = rest.finish
    assert set(answers) == started
    for index, answer in answers.items():
        expected = reference[kind][index]
        if answer.finish.reason is FinishReason.CANCELLED:
            expected = expected[: len(answer.token_ids)]
        assert answer.token_ids == expected


def _turns(kind, reference, more):
    """Prompts that go on from PROMPTS and what was answered to them."""
    return [(*prompt, *ids[:-1], *more) for prompt, ids in zip(PROMPTS, reference[kind], strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_engine_answers_a_next_turn_the_same_with_what_is_left_of_the_one_before(
    kind, block_size, load_tiny, reference
):
    """Reuse saves the prefill of all full blocks, beyond a window too, and changes not a token."""
    model = load_tiny(kind)
    turns = _turns(kind, reference, (7, 8, 9))
    plain = make_engine(model, block_size=block_size, prefix_reuse="off")
    requests = [make_request(n, ids, max_tokens=NEW_TOKENS) for n, ids in enumerate(turns)]
    expected = drive(plain, requests)
    assert all(answer.finish.usage.cached_tokens == 0 for answer in expected.values())

    engine = make_engine(model, block_size=block_size)
    drive(engine, greedy_requests())
    answers = drive(engine, requests)
    assert ids_of(answers) == ids_of(expected)
    for ids, answer in zip(turns, answers.values(), strict=True):
        known = len(ids) - 3
        assert answer.finish.usage.cached_tokens == known // block_size * block_size
    statistics = engine.statistics()
    assert statistics.reused_tokens >= sum(answer.finish.usage.cached_tokens for answer in answers.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_engine_answers_the_same_when_prefixes_are_shared_and_evicted_in_mid_use(kind, load_tiny, reference):
    """A pool that holds little more than one: blocks are shared, lost and found, and every answer stands."""
    model = load_tiny(kind)
    turns = _turns(kind, reference, (7, 8, 9))
    requests = [make_request(n, ids, max_tokens=20) for n, ids in enumerate(turns * 3)]
    expected = ids_of(drive(make_engine(model, prefix_reuse="off"), requests))
    scarce = make_engine(model, blocks=90 if kind == "gemma3" else 50, prefill_budget_tokens=16)
    answers = drive(scarce, [*greedy_requests()[:2]])
    answers = drive(scarce, requests)
    assert ids_of(answers) == expected
    statistics = scarce.statistics()
    assert statistics.preemptions > 0
    assert statistics.reused_tokens > 0


# ---- to the bit, where it is asked for


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_torch_path_gives_the_same_bits_in_any_company_when_told_to(kind, dtype, tiny_directory):
    """Alone, among others, in chunks and after losing its blocks logits are the same, beyond a window too."""
    model = load_model(str(tiny_directory(kind)), dtype=dtype, kernels="torch")

    def answers(only=None, **settings):
        prompts = [tuple(3 + (7 * n + 3 * i) % 380 for i in range(1 + 93 * n % 300)) for n in range(6)]
        requests = [
            make_request(n, prompt, max_tokens=20, logprobs=True)
            for n, prompt in enumerate(prompts)
            if only in (None, n)
        ]
        engine = make_engine(model, deterministic="on", **settings)
        found = drive(engine, requests)
        return {n: (answer.token_ids, answer.logprobs) for n, answer in found.items()}, engine.statistics()

    together, _ = answers()
    chunked, _ = answers(prefill_budget_tokens=23, max_sequences=4)
    scarce, statistics = answers(prefill_budget_tokens=64, blocks=120 if kind == "gemma3" else 90)
    assert statistics.preemptions > 0
    assert chunked == together == scarce
    alone, _ = answers(3)
    assert alone[3] == together[3]
