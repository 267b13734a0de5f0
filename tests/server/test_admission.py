"""Tests of `seedance_server.admission`."""

import math

import pytest
import trio

from seedance_server.accounts import Accounts
from seedance_server.admission import Admission
from seedance_server.engine_loop import EngineLoop
from seedance_server.errors import EngineStopped, RequestRefused
from seedance_server.served_model import ServedModel
from seedance_server.tenants import Rate, Tenant
from seedance_server.testing import InlineExecutor, ScriptedEncoder, ScriptedEngine
from seedance_wire.messages import ChatMessage, ErrorCode, Sampling, Submit


def admission(engine=None, encoder=None, answer_ends=(), **more):
    engine = engine or ScriptedEngine()
    model = ServedModel(
        name="m",
        context_tokens=4096,
        vocab_size=0x110000,
        engine=engine,
        encoder=encoder or ScriptedEncoder(),
        fingerprint=bytes(32),
        answer_ends=answer_ends,
    )
    loop = EngineLoop(engine, InlineExecutor(), buffer_outputs=8, stall_timeout_s=60)
    settings = {"accounts": Accounts(), "preprocess_workers": 1, "max_generations": 2}
    settings |= {"max_waiting": 9, "max_waiting_per_tenant": 9} | more
    return Admission(model, loop, **settings), loop


def submit(**more) -> Submit:
    values = {"sequence_id": 1, "idempotency_key": b"k" * 16}
    if not {"messages", "prompt", "token_ids"} & more.keys():
        values["prompt"] = "Hi"
    return Submit(**(values | more))


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (submit(model="other"), ErrorCode.MODEL_NOT_FOUND, "model"),
        (submit(prompt=""), ErrorCode.INVALID_REQUEST, "prompt"),
        (submit(prompt=" \n"), ErrorCode.INVALID_REQUEST, "prompt"),
        (submit(token_ids=()), ErrorCode.INVALID_REQUEST, "token_ids"),
        (submit(token_ids=(-1,)), ErrorCode.INVALID_REQUEST, "token_ids"),
        (submit(token_ids=(0x110000,)), ErrorCode.INVALID_REQUEST, "token_ids"),
        (submit(messages=()), ErrorCode.INVALID_REQUEST, "messages"),
        (submit(messages=(ChatMessage(role="user", content=None),)), ErrorCode.INVALID_REQUEST, "messages"),
        (submit(prompt="x" * 5000), ErrorCode.CONTEXT_LENGTH_EXCEEDED, None),
        (submit(sampling=Sampling(temperature=math.nan)), ErrorCode.INVALID_REQUEST, "temperature"),
        (submit(sampling=Sampling(top_p=math.inf)), ErrorCode.INVALID_REQUEST, "top_p"),
        (submit(sampling=Sampling(top_p=1.0000001)), ErrorCode.INVALID_REQUEST, "top_p"),
        (submit(sampling=Sampling(top_k=-2)), ErrorCode.INVALID_REQUEST, "top_k"),
        (submit(sampling=Sampling(max_tokens=0)), ErrorCode.INVALID_REQUEST, "max_tokens"),
        (submit(sampling=Sampling(max_tokens=-1)), ErrorCode.INVALID_REQUEST, "max_tokens"),
        (submit(sampling=Sampling(stop=("",))), ErrorCode.INVALID_REQUEST, "stop"),
        (submit(sampling=Sampling(logit_bias={2**21: 1})), ErrorCode.INVALID_REQUEST, "logit_bias"),
        (submit(sampling=Sampling(stop_token_ids=(2**21,))), ErrorCode.INVALID_REQUEST, "stop_token_ids"),
    ],
)
async def test_admission_refuses_what_the_request_got_wrong(request_, code, field) -> None:
    """Only the guilty request fails, with the field's name, before anything is queued."""
    subject, loop = admission()
    with pytest.raises(RequestRefused) as caught:
        await subject.prepare(request_)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert caught.value.retry_after_ms is None
    assert loop.statistics().generations == 0


async def test_admission_queues_a_good_request_with_the_engines_defaults() -> None:
    """What the client left open keeps the engine's default; the prompt is encoded."""
    engine = ScriptedEngine()
    subject, loop = admission(engine, clock=lambda: 5.0)
    prepared = await subject.prepare(
        submit(sampling=Sampling(temperature=0.5, max_tokens=2**63 - 1, stop=("a",)))
    )
    assert loop.statistics().generations == 0
    with subject.start(prepared):
        assert loop.statistics().generations == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
    (request,) = engine.requests
    assert request.prompt_ids == (ord("H"), ord("i"))
    assert (request.params.temperature, request.params.top_p, request.params.stop) == (0.5, 1.0, ("a",))
    assert request.arrival_s == 5.0


async def test_admission_chooses_a_seed_where_the_request_names_none() -> None:
    """The seed is written down with the request, so it must be known before it runs."""
    subject, _ = admission(entropy=lambda: 77)
    assert (await subject.prepare(submit())).seed == 77
    assert (await subject.prepare(submit(sampling=Sampling(seed=-(2**63))))).seed == -(2**63)
    again = subject.prepare_again(submit(), (1, 2), 77)
    assert (again.prompt_ids, again.seed) == ((1, 2), 77)


async def test_admission_ends_answers_in_turns_where_the_model_has_no_end_of_its_own() -> None:
    """A base model would go on with the other side's part; text that is only continued has no turns."""
    subject, _ = admission(answer_ends=("\nUser:",))
    turns = (ChatMessage(role="user", content="Hi"),)
    prepared = await subject.prepare(submit(messages=turns, sampling=Sampling(stop=("x",))))
    assert prepared.params.stop == ("x", "\nUser:")
    assert (await subject.prepare(submit(prompt="Hi"))).params.stop == ()
    endless = submit(messages=turns, sampling=Sampling(ignore_eos=True))
    assert (await subject.prepare(endless)).params.stop == ()


async def test_admission_takes_a_generation_up_behind_its_tokens() -> None:
    """What was generated before goes to the engine with the request."""
    engine = ScriptedEngine()
    subject, loop = admission(engine)
    prepared = await subject.prepare(submit())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        with subject.start(prepared, (1, 2), "Hello, ") as generation:
            assert (await generation.receive()).text == "world"
        nursery.cancel_scope.cancel()
    assert engine.requests[0].generated_ids == (1, 2)


@pytest.mark.parametrize(
    ("more", "ids"),
    [
        ({"prompt": "Hi"}, [7, 8, ord("H"), ord("i")]),
        ({"messages": (ChatMessage(role="user", content="Hi"),)}, [7, 8, ord("H"), ord("i")]),
        ({"token_ids": (1, 2)}, [7, 8, 1, 2]),
    ],
)
async def test_admission_puts_a_conversations_ids_before_what_is_new(more, ids) -> None:
    """An answer isn't tokenised again: its exact ids precede the next turn."""
    subject, _ = admission()
    assert list((await subject.prepare(submit(**more), (7, 8))).prompt_ids) == ids


async def test_admission_calls_a_bug_internal_and_says_nothing_more() -> None:
    """No traceback, no text of the exception goes to a client."""

    class Broken(ScriptedEncoder):
        def encode_text(self, prompt, *, parse_special=False, is_start=True):
            raise KeyError("/etc/secret")

    with pytest.raises(RequestRefused) as caught:
        await admission(encoder=Broken())[0].prepare(submit())
    assert caught.value.code is ErrorCode.INTERNAL
    assert "secret" not in caught.value.reason


async def test_admission_counts_requests_and_refuses_above_the_limit() -> None:
    """Memory is bounded; what can be retried says so."""
    subject, _ = admission()
    subject.enter("local")
    subject.enter("local")
    with pytest.raises(RequestRefused) as caught:
        subject.enter("local")
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.retry_after_ms
    subject.leave("local")
    subject.enter("local")
    subject.leave("local")
    subject.drain()
    with pytest.raises(RequestRefused) as caught:
        subject.enter("local")
    assert caught.value.code is ErrorCode.DRAINING
    assert subject.open_requests == 1


async def test_admission_refuses_fast_once_the_engine_is_gone() -> None:
    """New work doesn't queue up behind a dead engine."""
    engine = ScriptedEngine(fail_at_step=1)
    subject, loop = admission(engine)
    prepared = await subject.prepare(submit())
    with subject.start(prepared):
        await loop.run()
    with pytest.raises(RequestRefused) as caught:
        subject.enter("local")
    assert caught.value.code is ErrorCode.ENGINE_FAILED
    assert caught.value.retry_after_ms
    with pytest.raises(EngineStopped):
        subject.start(prepared)


async def test_encoding_never_runs_on_the_event_loop_and_takes_turns() -> None:
    """Tokenising off the loop, no more at once than there are workers."""
    import threading

    threads, at_once, most = set(), 0, 0

    class Watching(ScriptedEncoder):
        def encode_text(self, prompt, *, parse_special=False, is_start=True):
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            threads.add(threading.get_ident())
            barrier.wait(0.01) if barrier else None
            at_once -= 1
            return [1]

    barrier = threading.Event()
    subject, _ = admission(encoder=Watching(), max_generations=9)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(subject.prepare, submit())
    assert threading.get_ident() not in threads
    assert most == 1


async def test_admission_reserves_what_an_answer_may_come_to(autojump_clock) -> None:
    """Prompt and max_tokens, as far as the context goes; an answer of unsaid length has a usual one."""
    subject, _ = admission()
    for max_tokens, reserved in ((10, 12), (None, 514), (1 << 40, 4096)):
        prepared = await subject.prepare(submit(sampling=Sampling(max_tokens=max_tokens)))
        assert prepared.reserve_tokens == reserved, max_tokens


async def test_admission_over_quota_says_when_to_come_back(autojump_clock) -> None:
    """And what is settled can be had again."""
    accounts = Accounts([Tenant(name="a", tokens_per_minute=Rate.of(60))])
    subject, _ = admission(accounts=accounts)
    prepared = await subject.prepare(submit(sampling=Sampling(max_tokens=38)))
    subject.reserve("a", prepared)
    with pytest.raises(RequestRefused) as caught:
        subject.reserve("a", prepared)
    assert caught.value.code is ErrorCode.RATE_LIMITED
    assert caught.value.retry_after_ms == 20_000
    subject.reserve("b", prepared)
    subject.settle("a", prepared.reserve_tokens, 5)
    subject.reserve("a", prepared)
