"""Tests of `seedance_server.request_log`."""

import structlog
import trio

from seedance_server.config import Config
from seedance_server.engine.errors import OutOfDeviceMemory
from seedance_server.testing import ScriptedEngine, serve_in_memory
from tests.server.wire_client import KEY, wire_client

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRET = "what nobody may read in a log"


async def test_log_has_a_line_for_each_request_with_its_names_and_figures(autojump_clock) -> None:
    """What was asked and answered is in none of them."""
    with structlog.testing.capture_logs() as said:
        async with serve_in_memory(ScriptedEngine([SECRET])) as server:
            headers = [(b"X-Canary", b"true")]
            async with wire_client(server.connect(), headers=headers) as client:
                await client.submit(SECRET, traceparent=PARENT, idempotency_key=KEY)
                await client.until_end()
                await client.submit(SECRET, idempotency_key=KEY)
                await client.accepted()
                await client.submit(SECRET, model="another")
                while not hasattr(await client.receive(), "retryable"):
                    pass
            await trio.sleep(1)
    over, known, refused = [line for line in said if "stream_id" in line]
    session = over["session"]
    assert (over["event"], over["outcome"], over["stream_id"]) == ("request over", "stop", 1)
    assert (over["tenant"], over["canary"], over["trace_id"]) == ("local", True, TRACE)
    assert (over["prompt_tokens"], over["completion_tokens"]) == (len(SECRET), 1)
    assert over["ttft_ms"] > 0
    assert over["seconds"] > 0
    assert (known["event"], known["session"]) == ("request known already", session)
    assert (refused["outcome"], refused["code"], refused["log_level"]) == (
        "refused",
        "model_not_found",
        "info",
    )
    assert SECRET not in str(said)


async def test_log_warns_of_a_request_that_failed(autojump_clock) -> None:
    """An error is ours to look at, whatever the client makes of it."""
    with structlog.testing.capture_logs() as said:
        engine = ScriptedEngine(errors={0: OutOfDeviceMemory("no room")})
        async with serve_in_memory(engine) as server, wire_client(server.connect()) as client:
            await client.submit()
            await client.until_end()
    [line] = [line for line in said if line["event"] == "request over"]
    assert (line["log_level"], line["outcome"], line["code"]) == ("warning", "error", "engine_failed")


async def test_log_says_that_a_stream_waits_in_the_journal(autojump_clock) -> None:
    """It isn't over, and yet nothing of it is here any more."""
    with structlog.testing.capture_logs() as said:
        config = Config(model_path="m", orphan_grace_s=0.1)
        async with serve_in_memory(ScriptedEngine(["x"] * 9999), config=config) as server:
            async with wire_client(server.connect()) as client:
                await client.submit()
                await client.accepted()
            await trio.sleep(1)
    assert [line["stream_id"] for line in said if line["event"] == "request parked"] == [1]
