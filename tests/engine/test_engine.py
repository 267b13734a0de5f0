import math

import pytest
import torch
from attrs import evolve

from seedance_server.engine.config import EngineConfig
from seedance_server.engine.engine import Engine
from seedance_server.engine.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    KvCapacityExceeded,
    NumericalError,
)
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import FinishReason, StageTiming
from tests.engine.driving import (
    NEW_TOKENS,
    PROMPTS,
    collect,
    drive,
    greedy_requests,
    ids_of,
    make_engine,
    make_request,
)
from tests.tiny_models import KINDS, SLIDING_WINDOW


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="all-together"),
        pytest.param({"max_sequences": 1}, id="one-after-the-other"),
        pytest.param({"prefill_budget_tokens": 7, "max_sequences": 3}, id="small-chunks"),
        pytest.param({"prefill_budget_tokens": 1, "block_size": 1}, id="token-by-token"),
        pytest.param({"block_size": 64}, id="large-blocks"),
    ],
)
def test_engine_answers_as_generate_does_for_each_prompt_alone(kind, settings, load_tiny, reference):
    """Greedy output is exactly Transformers' own, whatever the neighbours and however prompts are cut."""
    engine = make_engine(load_tiny(kind), **settings)
    assert ids_of(drive(engine, greedy_requests())) == reference[kind]
    assert engine.statistics().preemptions == 0


@pytest.mark.slow
def test_two_engines_over_one_model_do_not_meet(load_tiny, reference):
    """The cache travels with the step, so engines may share a model and step in turn."""
    model = load_tiny("gemma3")
    engines = [make_engine(model), make_engine(model, prefill_budget_tokens=5)]
    answers = [{}, {}]
    for engine in engines:
        for request in greedy_requests():
            engine.add(request)
    for _ in range(150):
        for engine, collected in zip(engines, answers, strict=True):
            collect(engine, collected)
    assert [ids_of(collected) for collected in answers] == [reference["gemma3"]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_engine_reports_the_log_probabilities_of_the_stock_model(kind, load_tiny, stock_tiny):
    """logprobs are the model's own, for the chosen token and the best alternatives."""
    requests = greedy_requests(logprobs=True, top_logprobs=3, max_tokens=10)
    for request, answer in zip(
        requests, drive(make_engine(load_tiny(kind)), requests).values(), strict=False
    ):
        ids = torch.tensor([[*PROMPTS[request.id], *answer.token_ids]])
        with torch.inference_mode():
            expected = (
                stock_tiny(kind)(input_ids=ids).logits[0].log_softmax(-1)[-len(answer.token_ids) - 1 : -1]
            )
        for row, entry in zip(expected, answer.logprobs, strict=True):
            best = row.topk(3)
            assert math.isclose(entry.logprob, float(row[entry.token_id]), abs_tol=1e-4)
            assert [token for token, _, _ in entry.top] == best.indices.tolist()
            assert [p for _, _, p in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.slow
def test_engine_samples_the_same_alone_beside_others_late_and_after_preemption(load_tiny):
    """A seeded draw follows from the seed and the position, never from the company."""
    model = load_tiny("qwen2")
    chosen = {"temperature": 0.8, "seed": 42, "max_tokens": 30, "top_p": 0.9}
    alone = drive(make_engine(model), [make_request(0, PROMPTS[1], **chosen)])[0].token_ids
    others = [make_request(n, PROMPTS[n % 5], temperature=1.0, max_tokens=20 + n) for n in range(1, 8)]
    crowd = drive(make_engine(model), [*others, make_request(0, PROMPTS[1], **chosen)])
    assert crowd[0].token_ids == alone
    scarce = make_engine(model, blocks=36)
    assert drive(scarce, [*others, make_request(0, PROMPTS[1], **chosen)])[0].token_ids == alone
    assert scarce.statistics().preemptions > 0


def test_engine_draws_a_seed_for_a_request_without_one(load_tiny):
    """Two requests without a seed differ; the draw is injected, so a test can repeat it."""
    seeds = iter([1, 2, 1])
    engine = make_engine(load_tiny("qwen2"), entropy=lambda: next(seeds))
    requests = [make_request(n, PROMPTS[1], temperature=1.0, max_tokens=20) for n in range(3)]
    answers = drive(engine, requests)
    assert answers[0].token_ids == answers[2].token_ids != answers[1].token_ids


def test_engine_never_reuses_one_tenants_prompt_for_another(load_tiny):
    """What a tenant has asked can't be found out by how fast another one is answered."""
    engine = make_engine(load_tiny("llama"))
    requests = [
        evolve(make_request(n, PROMPTS[2], max_tokens=2), tenant=tenant) for n, tenant in enumerate("aba")
    ]
    cached = [drive(engine, [request])[request.id].finish.usage.cached_tokens for request in requests]
    assert cached == [0, 0, 48]


def test_engine_keeps_a_sessions_last_turn_while_others_come_and_go(load_tiny):
    """A conversation's next turn starts fast after a while, too; then its blocks go like any others."""
    now = [0.0]
    engine = make_engine(load_tiny("llama"), blocks=40, session_kv_ttl_s=60, clock=lambda: now[0])
    session = evolve(make_request(0, PROMPTS[2], max_tokens=2), session="chat")

    def cached_after(passers_by):
        for n in range(passers_by):
            drive(engine, [make_request(100 + n, [n] * 60, max_tokens=2)])
        return drive(engine, [session])[0].finish.usage.cached_tokens

    assert [cached_after(0), cached_after(9)] == [0, 48]
    now[0] += 61
    assert cached_after(9) == 0


def test_engine_frees_the_blocks_of_a_cancelled_sequence_at_once(load_tiny):
    """A cancel, whether queued, in its prompt or decoding, is reported by the next step; neighbours go on."""
    engine = make_engine(load_tiny("llama"), max_sequences=2)
    for n in range(3):
        engine.add(make_request(n, PROMPTS[2], max_tokens=NEW_TOKENS))
    answers = {}
    collect(engine, answers)
    used = engine.statistics().used_blocks
    engine.cancel(0)
    engine.cancel(2)
    engine.cancel(2)
    engine.cancel(99)
    assert engine.statistics().used_blocks == used // 2
    collect(engine, answers)
    assert {n: answer.finish and answer.finish.reason for n, answer in answers.items()} == {
        0: FinishReason.CANCELLED,
        1: None,
        2: FinishReason.CANCELLED,
    }
    assert (len(answers[0].token_ids), answers[2].token_ids) == (1, [])
    assert drive(engine)[1].finish.reason is FinishReason.STOP


def test_engine_rests_for_a_steps_time_when_all_are_throttled(load_tiny):
    """Half the steps is half the speed for one that is alone, too: its reader gets time to catch up."""
    rests = []
    ticks = iter(range(10**6))
    engine = make_engine(load_tiny("llama"), clock=lambda: float(next(ticks)), sleep=rests.append)
    engine.add(make_request(0, PROMPTS[1], max_tokens=4))
    engine.throttle(0, True)
    answers = drive(engine)
    assert len(answers[0].token_ids) == 4
    assert rests == [0.25] * 3
    engine.add(make_request(1, PROMPTS[1], max_tokens=4))
    drive(engine)
    assert len(rests) == 3


def test_engine_has_no_work_while_all_are_paused(load_tiny):
    """The engine's thread may sleep while nobody can take a token."""
    engine = make_engine(load_tiny("llama"))
    engine.add(make_request(0, PROMPTS[0], max_tokens=5))
    engine.pause(0)
    assert (engine.has_work(), engine.step(), engine.statistics().paused) == (False, [], 1)
    engine.cancel(0)
    assert engine.has_work()
    assert engine.step()[0].finish.reason is FinishReason.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [None, 512, 513, 10**8, 2**63 - 1])
def test_engine_reserves_no_more_for_a_large_max_tokens(max_tokens, load_tiny):
    """max_tokens is a bound: blocks follow the tokens that are there, and the context ends the answer."""
    engine = make_engine(load_tiny("qwen2"), max_context=100)
    engine.add(make_request(0, PROMPTS[1], max_tokens=max_tokens, ignore_eos=True))
    engine.step()
    assert engine.statistics().used_blocks == len(PROMPTS[1]) // 4
    answer = drive(engine)[0]
    assert answer.finish.reason is FinishReason.LENGTH
    assert answer.finish.usage.completion_tokens == 100 - len(PROMPTS[1])


@pytest.mark.parametrize(
    ("prompt_tokens", "fits"), [(1, True), (98, True), (99, True), (100, False), (200, False)]
)
def test_engine_refuses_a_prompt_that_fills_the_context(prompt_tokens, fits, load_tiny):
    """The error names both numbers, before any work is done."""
    engine = make_engine(load_tiny("qwen2"), max_context=100)
    if fits:
        engine.check(prompt_tokens, SamplingParams())
        answer = drive(engine, [make_request(0, [5] * prompt_tokens, ignore_eos=True)])[0]
        assert len(answer.token_ids) == 100 - prompt_tokens
    else:
        with pytest.raises(ContextLengthExceeded) as caught:
            engine.check(prompt_tokens, SamplingParams())
        assert (caught.value.prompt_tokens, caught.value.limit) == (prompt_tokens, 99)


def test_engine_refuses_what_the_whole_pool_cannot_hold_and_serves_what_it_can(load_tiny):
    """65 blocks wanted of 64 are refused at the door; ten small ones run at once."""
    engine = make_engine(load_tiny("qwen2"), blocks=64)
    assert engine.context_length == 256
    with pytest.raises(KvCapacityExceeded) as caught:
        engine.check(64 * 4, SamplingParams())
    assert (caught.value.needed_blocks, caught.value.total_blocks) == (65, 64)
    large = make_request(0, [5] * 256)
    answers = drive(engine, [large, *(make_request(n, PROMPTS[1], max_tokens=3) for n in range(1, 11))])
    assert isinstance(answers[0].finish.error, KvCapacityExceeded)
    assert all(answers[n].finish.reason is not FinishReason.ERROR for n in range(1, 11))


def test_engine_ends_an_answer_that_fills_the_pool(load_tiny):
    """The pool is a limit of length like the context: reason length, nothing hangs."""
    engine = make_engine(load_tiny("qwen2"), blocks=8)
    answer = drive(engine, [make_request(0, PROMPTS[1], ignore_eos=True)])[0]
    assert (answer.finish.reason, answer.finish.usage.completion_tokens) == (FinishReason.LENGTH, 32 - 12)


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ((), {}, "prompt"),
        ((5, 384), {}, "token_ids"),
        ((-1,), {}, "token_ids"),
        ((5,), {"stop_token_ids": (384,)}, "stop_token_ids"),
        ((5,), {"min_tokens": 512}, "min_tokens"),
    ],
)
def test_engine_answers_a_request_it_cannot_serve_with_an_error_beside_one_it_can(
    prompt, params, field, load_tiny, reference
):
    """Only the guilty request fails; its neighbour's ids stay identical."""
    engine = make_engine(load_tiny("llama"))
    good = make_request(1, PROMPTS[3], max_tokens=NEW_TOKENS)
    answers = drive(engine, [make_request(0, prompt, **params), good])
    assert isinstance(answers[0].finish.error, InvalidParameter)
    assert answers[0].finish.error.field == field
    assert answers[1].token_ids == reference["llama"][3]


def test_engine_ends_only_the_sequence_whose_logits_are_unusable(load_tiny, reference, monkeypatch):
    """A row of NaN is one sequence's misfortune."""
    engine = make_engine(load_tiny("llama"))
    run = engine._runner.run

    def poisoned(batch):
        logits = run(batch).clone()
        for row, chunk in enumerate(batch.sampled):
            if chunk.sequence.id == 1 and chunk.start > 15:
                logits[row] = float("nan")
        return logits

    monkeypatch.setattr(engine._runner, "run", poisoned)
    answers = drive(engine, greedy_requests())
    assert isinstance(answers[1].finish.error, NumericalError)
    assert answers[1].token_ids == reference["llama"][1][:5]
    others = [0, 2, 3, 4]
    assert [answers[n].token_ids for n in others] == [reference["llama"][n] for n in others]


def test_engine_lets_a_failure_of_the_model_reach_its_caller(load_tiny, monkeypatch):
    """What the engine can't pin on one sequence is for the caller to handle, as it was raised."""
    engine = make_engine(load_tiny("llama"))
    engine.add(make_request(0, PROMPTS[0]))

    def broken(_batch):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine._runner, "run", broken)
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()


def test_engine_refuses_an_id_that_is_in_use(load_tiny):
    """One id, one generation: answers are never mixed."""
    engine = make_engine(load_tiny("llama"))
    engine.add(make_request(0, PROMPTS[0], max_tokens=2))
    with pytest.raises(ValueError, match="hasn't ended"):
        engine.add(make_request(0, PROMPTS[1]))
    drive(engine)
    assert drive(engine, [make_request(0, PROMPTS[1], max_tokens=2)])[0].finish.reason is FinishReason.LENGTH


def test_engine_times_the_stages_on_its_own_clock(load_tiny):
    """Queue, prefill over several steps, first decode: each is what the injected clock says."""
    now = [100.0]

    def clock():
        now[0] += 0.5
        return now[0]

    engine = make_engine(load_tiny("llama"), clock=clock, prefill_budget_tokens=30)
    finish = drive(engine, [make_request(0, PROMPTS[2], max_tokens=3)])[0].finish
    # A step reads the clock at its start, around its forward pass, and when its tokens are chosen.
    assert finish.timing == StageTiming(queue_s=100.5, prefill_s=2.5, first_decode_s=1.0)


def test_engine_counts_what_it_does(load_tiny):
    """The statistics add up: a sequence's first token comes from its prompt's rows."""
    engine = make_engine(load_tiny("llama"), max_sequences=2)
    for n in range(3):
        engine.add(make_request(n, PROMPTS[1], max_tokens=4, ignore_eos=True))
    engine.step()
    statistics = engine.statistics()
    assert (statistics.running, statistics.waiting, statistics.paused) == (2, 1, 0)
    assert statistics.used_blocks == 2 * 3
    drive(engine)
    statistics = engine.statistics()
    assert (statistics.generated_tokens, statistics.computed_tokens, statistics.steps) == (
        12,
        3 * (12 + 3) - 8,  # the third begins like the others: two full blocks
        8,
    )


def test_engine_takes_no_more_for_its_pool_than_it_could_use(load_tiny):
    """The default pool of a small model is small: all sequences at full context, and not half the machine."""
    engine = Engine(load_tiny("qwen2"), EngineConfig(max_sequences=3))
    assert engine.statistics().total_blocks == 3 * 512 // 16
    assert "3 sequences of the whole context of 512 tokens" in engine.describe_pool()
    assert engine.context_length == 512


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_engine_goes_to_the_very_last_position(kind, load_tiny, stock_tiny):
    """Up to the limit each token is the stock model's, and beyond a window no more than that is kept."""
    engine = make_engine(load_tiny(kind), prefill_budget_tokens=16)
    held = []
    prompt = [3 + 7 * n % 380 for n in range(440)]
    request = make_request(0, prompt, ignore_eos=True)
    answer = drive(engine, [request], before=lambda _: held.append(engine.statistics().used_blocks))[0]
    ids = [*prompt, *answer.token_ids]
    assert (answer.finish.reason, len(ids)) == (FinishReason.LENGTH, 512)
    with torch.inference_mode():
        logits = stock_tiny(kind)(torch.tensor([ids[:-1]])).logits[0]
    assert logits.argmax(-1)[len(prompt) - 1 :].tolist() == answer.token_ids
    ring = (SLIDING_WINDOW + 16 - 3) // 4 + 2  # a window and the longest chunk behind it, in blocks of 4
    assert max(held) == 512 // 4 + (ring if kind == "gemma3" else 0)


def test_engine_binds_its_threads_to_the_calling_thread(load_tiny):
    """The processor is shared with the rest of the process as the operator says."""
    make_engine(load_tiny("qwen2"), threads=1).bind_thread()
    assert torch.get_num_threads() == 1


def test_engine_integrity_fails_when_its_parts_disagree(load_tiny):
    """The check can fail."""
    engine = make_engine(load_tiny("qwen2"))
    engine.add(make_request(0, PROMPTS[0]))
    engine._generations.clear()
    with pytest.raises(AssertionError, match="different sequences"):
        engine.check_integrity()
