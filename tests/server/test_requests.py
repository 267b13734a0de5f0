"""Tests of `seedance_server.requests`: what is written of a request, and what is made of it again."""

import hashlib
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from seedance_server.config import Config
from seedance_server.errors import RequestRefused
from seedance_server.requests import Requests, ResumeRefused
from seedance_server.tenants import Rate, Tenant
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.errors import RemoteProtocolError
from seedance_wire.messages import (
    ChatMessage,
    Durability,
    ErrorCode,
    OnDisconnect,
    Resume,
    ResumeFailure,
    Sampling,
    Submit,
)
from seedance_wire.stored_form import load_submit
from tests.server.test_session_registry import Claimant

PIECES = [f"{number} é " for number in range(30)]


@asynccontextmanager
async def at_work(engine=None, **settings):
    """Requests on a whole server, and a session without a connection."""
    config = Config(model_path="m", **settings)
    async with serve_in_memory(engine or ScriptedEngine(PIECES), config=config) as server:
        requests = Requests(server.journal, server.admission, config, wall_clock=lambda: 0.0)
        entrance = await server.registry.enter("local", None, None, Claimant())
        yield requests, entrance.session, server


def submit(sequence_id: int = 1, **more) -> Submit:
    values = {"idempotency_key": bytes([sequence_id]) * 16, "prompt": "Hi"} | more
    return Submit(sequence_id=sequence_id, **values)


async def prepare(requests, session, request):
    return await requests.prepare(session, request, requests.watch(session))


async def commit(requests, session, request, prepared):
    return await requests.commit(session, request, prepared, requests.watch(session))


async def begin(requests, session, request, deadline_s=float("inf")):
    requests._admission.enter("local")
    watch = requests.watch(session)
    prepared = await requests.prepare(session, request, watch)
    submission = await requests.commit(session, request, prepared, watch)
    return requests.start(session, submission.stream.stream_id, request, prepared, watch, deadline_s)


async def test_request_is_written_with_all_that_its_answer_depends_on(autojump_clock) -> None:
    """Prompt ids, the seed that was chosen, the request as it came, the model's fingerprint."""
    async with at_work() as (requests, session, server):
        request = submit(
            sampling=Sampling(temperature=0.5, stop=("a",)),
            prompt=None,
            messages=(ChatMessage(role="user", content="Q"),),
        )
        prepared = await prepare(requests, session, request)
        await commit(requests, session, request, prepared)
        stored = await server.journal.load_stream(session.id, 1)
        assert stored.prompt_ids == (ord("Q"),)
        assert stored.seed == prepared.seed
        assert load_submit(stored.request) == request
        assert stored.model_fingerprint == bytes(32)


async def test_requests_durability_is_its_own_or_the_servers() -> None:
    """A server that keeps nothing refuses whoever needs it kept."""
    async with at_work(durability="none") as (requests, session, _):
        assert requests.durability_of(submit()) is Durability.NONE
        assert requests.ack_level.value == "received"
        with pytest.raises(RequestRefused) as caught:
            await prepare(requests, session, submit(durability=Durability.COMMITTED))
        assert (caught.value.code, caught.value.field) == (ErrorCode.UNSUPPORTED, "durability")
    async with at_work() as (requests, session, _):
        assert requests.durability_of(submit()) is Durability.COMMITTED
        assert requests.ack_level.value == "committed"
        for more, durable, ends in (
            ({}, True, False),
            ({"on_disconnect": OnDisconnect.CANCEL}, True, True),
            ({"durability": Durability.NONE}, False, True),
        ):
            number = session.last_sequence_id + 1
            stream = await begin(requests, session, submit(number, **more))
            assert (stream.is_durable, stream.cancel_on_disconnect) == (durable, ends)


async def test_continuation_needs_an_ended_stream_of_the_same_session_and_model(autojump_clock) -> None:
    """Each other case is refused with the field that is at fault."""
    async with at_work() as (requests, session, server):
        stream = await begin(requests, session, submit())
        for stream_id in (1, 2):
            with pytest.raises(RequestRefused) as caught:
                await prepare(requests, session, submit(2, continues=stream_id))
            assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, "continues")
        await stream.over.wait()
        prepared = await prepare(requests, session, submit(2, continues=1, prompt="R"))
        assert prepared.prompt_ids == (ord("H"), ord("i"), *range(1, 31), ord("R"))
        object.__setattr__(server.admission.model, "fingerprint", b"other" * 6)
        with pytest.raises(RequestRefused) as caught:
            await prepare(requests, session, submit(2, continues=1))
        assert caught.value.code is ErrorCode.FINGERPRINT_MISMATCH


async def test_stream_is_taken_over_once_however_many_ask_for_it(autojump_clock) -> None:
    """Two RESUMEs at once find one producer, with its text so far, its tokens and its digest."""
    engine = ScriptedEngine(PIECES)
    async with at_work(engine, orphan_grace_s=0.1) as (requests, session, server):
        stream = await begin(requests, session, submit())
        await stream.over.wait()
        assert session.streams == ()
        found = []

        async def find() -> None:
            found.append(await requests.find(session, Resume(stream_id=1, last_processed_id=2)))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(find)
        (taken_over,) = {each.stream for each in found}
        assert taken_over is session.stream(1)
        assert all(each.is_live for each in found)
        assert server.admission.open_requests == 1
        await trio.sleep(0.02)
        assert engine.requests[1].delivered_text == "".join(PIECES[: found[0].last_id])


async def test_resume_digest_is_compared_with_the_text(autojump_clock) -> None:
    """At any cursor; the hash is handed on, so that checkpoints can go on from it."""
    async with at_work() as (requests, session, _):
        stream = await begin(requests, session, submit())
        await stream.over.wait()
        for cursor in (0, 1, 17, 30, 31):
            text = "".join(PIECES[:cursor]).encode()
            digest = hashlib.sha256(text).digest()[:16]
            resume = Resume(stream_id=1, last_processed_id=cursor, digest=digest)
            found = await requests.find(session, resume)
            assert found.digest.digest() == hashlib.sha256(text).digest()
            with pytest.raises(ResumeRefused) as caught:
                await requests.find(session, Resume(stream_id=1, last_processed_id=cursor, digest=bytes(16)))
            assert caught.value.code is ResumeFailure.DIVERGED


@pytest.mark.parametrize("last_processed_id", [0, 1, 30])
@pytest.mark.parametrize("when", ["running", "over", "after the process died"])
async def test_stream_without_durability_cannot_be_resumed(
    autojump_clock, when: str, last_processed_id: int
) -> None:
    """Its frames are nowhere but on their way; that it has a row tells nobody that it ended, or how."""
    async with at_work() as (requests, session, _):
        if when == "after the process died":
            request = submit(durability=Durability.NONE)
            await commit(requests, session, request, await prepare(requests, session, request))
        else:
            stream = await begin(requests, session, submit(durability=Durability.NONE))
            if when == "over":
                await stream.over.wait()
                await trio.sleep(1)
                assert session.stream(1) is None
        with pytest.raises(ResumeRefused) as caught:
            await requests.find(session, Resume(stream_id=1, last_processed_id=last_processed_id))
        assert caught.value.code is ResumeFailure.NOT_FOUND


async def test_deadline_holds_across_a_takeover(autojump_clock) -> None:
    """It counts from the receipt, by the wall clock."""
    async with at_work(orphan_grace_s=0.05) as (requests, session, server):
        stream = await begin(requests, session, submit(deadline_ms=1))
        await stream.over.wait()
        record = await server.journal.find_stream(session.id, 1)
        requests.wall_clock = lambda: record.created_ms / 1e3 + 5
        found = await requests.find(session, Resume(stream_id=1, last_processed_id=0))
        await found.stream.over.wait()
        record = await server.journal.find_stream(session.id, 1)
        assert record.finish == "deadline_exceeded"


async def test_stream_that_has_ended_is_found_to_have_nothing_to_cancel(autojump_clock) -> None:
    """And one that never was is the client's violation."""
    async with at_work() as (requests, session, _):
        stream = await begin(requests, session, submit())
        assert await requests.find_to_cancel(session, 1) is stream
        await stream.over.wait()
        assert await requests.find_to_cancel(session, 1) is None
        with pytest.raises(RemoteProtocolError):
            await requests.find_to_cancel(session, 2)


async def test_request_is_charged_what_it_used_once(autojump_clock) -> None:
    """What was reserved and not used comes back at its end; the same request again costs nothing."""
    async with at_work(ScriptedEngine(["a"] * 10)) as (requests, session, server):
        server.gate.accounts.update([Tenant(name="local", tokens_per_minute=Rate(600, 600, 600))])
        account = server.gate.accounts.of("local")
        request = submit(sampling=Sampling(max_tokens=500))
        stream = await begin(requests, session, request)
        assert account.take_tokens(600) == pytest.approx(50.2, abs=0.1)  # 502 reserved
        prepared = await prepare(requests, session, submit(2, sampling=Sampling(max_tokens=90)))
        again = await commit(requests, session, evolve(request, sequence_id=2), prepared)
        assert again.replayed
        await stream.over.wait()
        assert account.take_tokens(600) == pytest.approx(1.2, abs=0.2)  # 2 + 10 used
        big = await prepare(requests, session, submit(3, sampling=Sampling(max_tokens=600)))
        with pytest.raises(RequestRefused) as caught:
            await commit(requests, session, submit(3, sampling=Sampling(max_tokens=600)), big)
        assert caught.value.code is ErrorCode.RATE_LIMITED
        assert caught.value.retry_after_ms is not None
        assert session.stream(3) is None


async def test_request_that_cannot_be_kept_is_not_charged(autojump_clock) -> None:
    """The journal refused it: its tokens are the tenant's again."""
    async with at_work() as (requests, session, server):
        server.gate.accounts.update([Tenant(name="local", tokens_per_minute=Rate.of(600), journal_bytes=1)])
        for number in range(1, 9):
            with pytest.raises(RequestRefused) as caught:
                await begin(requests, session, submit(number, sampling=Sampling(max_tokens=500)))
            assert caught.value.code is ErrorCode.JOURNAL_FULL
