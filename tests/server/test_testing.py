"""Tests of `seedance_server.testing`: doubles that lie would make every other test lie."""

import pytest

from seedance_server.engine.errors import ContextLengthExceeded, InvalidParameter
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import FinishReason, GenerationRequest
from seedance_server.testing import ScriptedEncoder, ScriptedEngine, serve_in_memory


def request(id_: int, **params) -> GenerationRequest:
    return GenerationRequest(id=id_, prompt_ids=(1,), params=SamplingParams(**params), arrival_s=0)


def test_scripted_engine_behaves_as_an_engine_does() -> None:
    """One output a step for each that isn't paused, the last with finish, a cancel answered by a step."""
    engine = ScriptedEngine(["a", "b"])
    assert not engine.has_work()
    assert engine.step() == []
    engine.add(request(1))
    engine.add(request(2, max_tokens=1))
    first = engine.step()
    assert [(output.id, output.text) for output in first] == [(1, "a"), (2, "a")]
    assert first[1].finish.reason is FinishReason.LENGTH
    engine.pause(1)
    assert not engine.has_work()
    assert engine.step() == []
    engine.cancel(1)
    assert engine.has_work()
    (output,) = engine.step()
    assert output.finish.reason is FinishReason.CANCELLED
    assert engine.active == ()
    for unknown in (engine.cancel, engine.pause, engine.resume):
        unknown(99)


def test_scripted_engine_refuses_and_fails_as_told() -> None:
    """Errors are part of the script."""
    with pytest.raises(ContextLengthExceeded):
        ScriptedEngine(context_tokens=4).check(4, SamplingParams())
    engine = ScriptedEngine(fail_at_step=2)
    engine.add(request(1))
    engine.step()
    with pytest.raises(RuntimeError, match="scripted failure"):
        engine.step()


def test_scripted_encoder_counts_a_character_a_token() -> None:
    """And refuses what holds no text, as the real one does."""
    assert ScriptedEncoder().encode_text("Hi") == [72, 105]
    with pytest.raises(InvalidParameter):
        ScriptedEncoder().encode_text(" ")
    with pytest.raises(InvalidParameter):
        ScriptedEncoder().encode_chat([])


async def test_server_in_memory_ends_with_its_block(autojump_clock) -> None:
    """No task outlives the block, open connections or not."""
    async with serve_in_memory() as server:
        stream = server.connect()
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        server.connect()
