"""Tests of `seedance_server.metrics.requests`: every ending of a request, over the real server."""

from contextlib import asynccontextmanager

import pytest
import trio

from seedance_server.config import Config
from seedance_server.engine.errors import NumericalError
from seedance_server.journal.errors import JournalFull
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import Accepted, Durability, OnDisconnect
from tests.server.failing_journal import FailingJournal
from tests.server.http.probe import Client
from tests.server.metrics.scraping import outcomes, scrape, value
from tests.server.wire_client import KEY, wire_client

LONG = ["x"] * 10_000


async def one(server, **more):
    """A request from its SUBMIT to its last frame."""
    async with wire_client(server.connect()) as client:
        await client.submit(**more)
        await client.accepted()
        return await client.until_end()


async def stop(server):
    await one(server)


async def length(server):
    await one(server, sampling={"max_tokens": 2})


async def cancel(server):
    async with wire_client(server.connect()) as client:
        await client.submit()
        stream_id = await client.accepted()
        await client.receive()
        await client.cancel(stream_id)
        await client.until_end()


async def cancel_at_once(server):
    async with wire_client(server.connect()) as client:
        await client.submit()
        await client.cancel(await client.accepted())
        await client.until_end()


async def leave(server):
    async with wire_client(server.connect()) as client:
        await client.submit(on_disconnect=OnDisconnect.CANCEL)
        await client.accepted()
    await trio.sleep(5)


async def leave_without_durability(server):
    async with wire_client(server.connect()) as client:
        await client.submit(durability=Durability.NONE)
        await client.accepted()
        await client.receive()
    await trio.sleep(5)


async def leave_before_the_commit(server):
    server.journal.commit_s = 3
    async with wire_client(server.connect()) as client:
        server.journal.faults["submit"] = lambda *_, **__: JournalFull(new_work=True)
        await client.submit()
        await trio.sleep(1)
    await trio.sleep(5)


async def never_come_back(server):
    async with wire_client(server.connect()) as client:
        await client.submit()
        await client.accepted()
    await trio.sleep(700)  # beyond --orphan-grace and --resume-window


async def pass_the_deadline(server):
    await one(server, deadline_ms=500)


async def pass_the_deadline_unread(server):
    async with wire_client(server.connect()) as client:
        await client.submit(deadline_ms=50)
        await client.accepted()
    await trio.sleep(5)


async def meet_an_engine_error(server):
    server.engine_loop._engine._errors[2] = NumericalError("NaN")
    await one(server)


async def meet_an_engine_crash(server):
    server.engine_loop._engine._fail_at_step = 3
    await one(server, durability=Durability.NONE)


async def meet_a_full_disk(server):
    def full(*_, finish=None, **__):
        return None if finish else JournalFull(new_work=False)

    server.journal.faults["append"] = full
    await one(server)


async def be_refused(server):
    async with wire_client(server.connect()) as client:
        await client.submit(model="another")
        await client.refused()


async def be_refused_as_invalid(server):
    async with wire_client(server.connect()) as client:
        await client.submit(sampling={"temperature": -1.0})
        await client.refused()


async def be_refused_while_draining(server):
    async with wire_client(server.connect()) as client:
        server.admission.drain()
        await client.submit()
        await client.refused()


async def be_too_late_in_preprocessing(server):
    async def take_three_seconds(_encode):
        await trio.sleep(3)

    server.admission._run_in_thread = take_three_seconds
    async with wire_client(server.connect()) as client:
        await client.submit(deadline_ms=1)
        await client.receive()


async def be_parked_by_a_drain(server):
    async with trio.open_nursery() as nursery, wire_client(server.connect()) as client:
        await client.submit()
        await client.accepted()
        nursery.start_soon(server.door.drain, 1)
        await trio.sleep(5)


async def be_ended_by_a_drain(server):
    async with trio.open_nursery() as nursery, wire_client(server.connect()) as client:
        await client.submit(durability=Durability.NONE)
        await client.accepted()
        nursery.start_soon(server.door.drain, 1)
        await client.until_end()


@asynccontextmanager
async def serving(pieces=LONG, **settings):
    config = Config(model_path="m", **({"orphan_grace_s": 0.1} | settings))
    async with serve_in_memory(ScriptedEngine(pieces), config=config, journal=FailingJournal()) as server:
        yield server


@pytest.mark.parametrize(
    ("ending", "pieces", "outcome", "code"),
    [
        (stop, ["a", "b"], "stop", None),
        (length, LONG, "length", None),
        (cancel, LONG, "abort", None),
        (cancel_at_once, LONG, "abort", None),
        (leave, LONG, "abort", None),
        (leave_without_durability, LONG, "abort", None),
        (pass_the_deadline, LONG, "error", "deadline_exceeded"),
        (pass_the_deadline_unread, LONG, "error", "deadline_exceeded"),
        (meet_an_engine_error, LONG, "error", "numerical_error"),
        (meet_an_engine_crash, LONG, "error", "engine_failed"),
        (meet_a_full_disk, LONG, "error", "journal_full"),
        (be_refused, LONG, "refused", "model_not_found"),
        (be_refused_as_invalid, LONG, "refused", "invalid_request"),
        (be_refused_while_draining, LONG, "refused", "draining"),
        (be_too_late_in_preprocessing, LONG, "refused", "deadline_exceeded"),
        (leave_before_the_commit, LONG, "refused", "journal_full"),
        (be_ended_by_a_drain, LONG, "error", "draining"),
    ],
)
async def test_every_request_ends_in_exactly_one_reason(
    autojump_clock, ending, pieces, outcome, code
) -> None:
    """However it ends it is counted once; and no gauge holds on to it."""
    async with serving(pieces) as server:
        await ending(server)
        await trio.sleep(5)
        read = scrape(server)
        assert outcomes(read) == {outcome: 1}
        failures = {
            dict(labels)["code"]
            for (name, *labels), count in read.items()
            if name == "seedance:request_failures_total" and count
        }
        assert failures == ({code} if code else set())
        for gauge in ("running", "waiting", "paused"):
            assert value(read, f"num_requests_{gauge}") == 0
        assert value(read, "requests_parked_total") == 0


async def test_stream_that_waits_in_the_journal_has_no_end_yet(autojump_clock) -> None:
    """A drain parks it: it is neither a success nor an abort until somebody came back, or nobody did."""
    async with serving(LONG) as server:
        await be_parked_by_a_drain(server)
        read = scrape(server)
        assert outcomes(read) == {}
        assert value(read, "requests_parked_total") == 1


async def test_stream_that_nobody_came_back_for_is_an_abort(autojump_clock) -> None:
    """It was parked, then given up: one word in the end, told by who forgot it."""
    async with serving(LONG) as server:
        await never_come_back(server)
        read = scrape(server)
        assert outcomes(read) == {"abort": 1}
        assert value(read, "requests_parked_total") == value(read, "requests_abandoned_total") == 1


async def test_stream_that_is_taken_up_ends_once(autojump_clock) -> None:
    """Parked, come back for, brought to its end: one request, one word, and its frames were sent again."""
    async with serving(["x"] * 100, orphan_grace_s=0.1) as server:
        async with wire_client(server.connect()) as client:
            await client.submit()
            stream_id = await client.accepted()
            taken = await client.frames(3)
            welcome = client.welcome
        await trio.sleep(5)
        async with wire_client(server.connect(), former=welcome) as client:
            await client.resume(stream_id, taken)
            await client.frames()
        await trio.sleep(1)
        read = scrape(server)
        assert outcomes(read) == {"stop": 1}
        assert value(read, "requests_parked_total") == value(read, "requests_taken_up_total") == 1
        assert value(read, "resumes_total", outcome="live") == 1
        assert value(read, "replayed_frames_total") > 0


async def test_request_that_is_sent_again_is_none(autojump_clock) -> None:
    """Its stream is counted, once."""
    async with serving(["a"]) as server:
        await one(server, idempotency_key=KEY)
        async with wire_client(server.connect()) as client:
            await client.submit(idempotency_key=KEY)
            await client.accepted()
        await trio.sleep(1)
        read = scrape(server)
        assert outcomes(read) == {"stop": 1}
        assert value(read, "requests_replayed_total") == 1


async def test_mass_abort_leaves_gauges_at_nothing_and_token_sums_that_agree(autojump_clock) -> None:
    """All are cancelled at once; the next scrape shows none, and every token that was made is somebody's."""
    async with serving(LONG, max_streams=64) as server, wire_client(server.connect()) as client:
        for _ in range(60):
            await client.submit()
        accepted = 0
        while accepted < 60:
            accepted += isinstance(await client.receive(), Accepted)
        await trio.sleep(0.05)  # some steps
        assert value(scrape(server), "num_requests_running") == 60
        for stream_id in range(1, 61):
            await client.cancel(stream_id)
        ends = 0
        while ends < 60:
            ends += getattr(await client.receive(), "final", None) is not None
        read = scrape(server)
        assert outcomes(read) == {"abort": 60}
        for gauge in ("running", "waiting", "paused"):
            assert value(read, f"num_requests_{gauge}") == 0
        assert value(read, "generation_tokens_total") == value(read, "request_generation_tokens_sum") > 0
        assert value(read, "request_prompt_tokens_sum") == value(read, "prompt_tokens_total") == 120


async def test_request_has_its_stages_and_its_first_token_timed(autojump_clock) -> None:
    """One sample in each histogram; the stages add up to the time to the first token."""
    async with serving(["a", "b", "c"]) as server:
        await one(server)
        read = scrape(server)
        stages = ("queue", "preprocess", "prefill", "first_decode", "cache_sync", "egress")
        assert [value(read, f"request_{stage}_time_seconds_count") for stage in stages] == [1] * 6
        ttft_s = value(read, "time_to_first_token_seconds_sum", canary="false")
        assert ttft_s > 0
        assert sum(value(read, f"request_{stage}_time_seconds_sum") for stage in stages) == pytest.approx(
            ttft_s
        )
        assert value(read, "time_to_first_token_seconds_count", canary="false") == 1
        assert value(read, "e2e_request_latency_seconds_count", canary="false") == 1
        assert value(read, "request_time_per_output_token_seconds_count") == 1
        assert value(read, "inter_token_latency_seconds_count") == 2


async def test_reader_that_stands_still_shows_in_the_flow_figures(autojump_clock) -> None:
    """The edges of its window, and how long its stream stood once it goes on."""
    async with serving(["x"] * 200) as server, wire_client(server.connect()) as client:
        client.acks = False
        await client.submit()
        await client.accepted()
        await trio.sleep(3)
        read = scrape(server)
        assert value(read, "flow_changes_total", action="pause") == 1
        assert value(read, "num_requests_paused") == 1
        client.acks = True
        await client.until_end()
        read = scrape(server)
        assert value(read, "window_stall_seconds_count") >= 1
        assert value(read, "window_stall_seconds_sum") == pytest.approx(3, abs=0.7)
        assert value(read, "engine_pauses_total") >= 1


async def test_canaries_are_counted_apart(autojump_clock) -> None:
    """Whoever tries something out reads its error rate and its times beside those of everybody else."""
    async with serving(["a"]) as server:
        await one(server)
        async with wire_client(server.connect(), headers=[(b"X-Canary", b"true")]) as client:
            await client.submit()
            await client.until_end()
        asked = {"model": "scripted", "prompt": "Hi"}
        answer = await Client(server.connect()).ask("POST", "/v1/completions", asked, X_Canary="true")
        assert answer.status == 200
        await trio.sleep(1)
        read = scrape(server)
        assert value(read, "request_success_total", finished_reason="stop", canary="false") == 1
        assert value(read, "request_success_total", finished_reason="stop", canary="true") == 2
        assert value(read, "time_to_first_token_seconds_count", canary="true") == 2
