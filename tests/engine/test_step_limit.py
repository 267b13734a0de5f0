import pytest
import torch

from seedance_server.engine.errors import DeviceFailed, OutOfDeviceMemory
from seedance_server.engine.step_limit import StepLimit
from tests.engine.driving import collect, drive, greedy_requests, ids_of, make_engine, make_request


def test_step_limit_halves_the_step_that_failed_not_the_bound():
    """A step of 6 rows was too large: 64 is out of the question, whatever the bound was."""
    limit = StepLimit(128, 256)
    assert limit.halve(6, 40)
    assert (limit.rows, limit.tokens) == (3, 20)
    assert limit.halve(1, 20)
    assert (limit.rows, limit.tokens) == (1, 10)


def test_step_limit_says_when_nothing_smaller_is_left():
    """A single row that doesn't fit is the end: retrying for ever would hide it."""
    limit = StepLimit(128, 256)
    assert not limit.halve(1, 1)
    assert limit.failures == 1


def test_step_limit_grows_back_when_steps_go_well():
    """What was short for a moment must not make the server slow for ever."""
    limit = StepLimit(8, 256)
    limit.halve(8, 8)
    for _ in range(255):
        limit.note_success()
    assert (limit.rows, limit.tokens) == (4, 4)
    for _ in range(10 * 256):
        limit.note_success()
    assert (limit.rows, limit.tokens) == (8, 256)


# ---- the engine under it


def _refuse(engine, refuses):
    """Let the device run out of memory where `refuses` (call, batch) says so, in the midst of the work."""
    run, calls = engine._runner.run, []

    def short(batch):
        calls.append(batch)
        logits = run(batch)  # the cache is written to, as it is when memory runs out later on
        if refuses(len(calls), batch):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return logits

    engine._runner.run = short
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_engine_gives_the_same_tokens_wherever_memory_runs_out(kind, load_tiny, reference):
    """A step that failed half-way is no harm: what it wrote is written again."""
    engine = make_engine(load_tiny(kind), prefill_budget_tokens=16)
    calls = _refuse(engine, lambda call, batch: call % 3 == 0 and batch.tokens > 1)
    answers = drive(engine, greedy_requests(max_tokens=12))
    assert ids_of(answers) == [ids[:12] for ids in reference[kind]]
    assert engine._limit.failures > 5
    statistics = engine.statistics()
    assert len(calls) == statistics.steps + statistics.memory_failures


def test_engine_settles_at_what_the_device_holds(load_tiny):
    """Where six rows are too many, no step has more than that for long; drafts are the first to go."""
    engine = make_engine(load_tiny("llama"), prefill_budget_tokens=16)
    plain = drive(make_engine(load_tiny("llama")), greedy_requests(max_tokens=8))
    engine._speculation.propose = lambda running, *_: [
        setattr(each, "draft", (1,) * 7) for each in running if each.remaining == 1
    ]
    engine._speculation.learn = lambda *_: None
    _refuse(engine, lambda _call, batch: batch.tokens > 6)
    assert ids_of(drive(engine, greedy_requests(max_tokens=8))) == ids_of(plain)


def test_engine_stops_where_a_single_row_has_no_memory(load_tiny):
    """Then no smaller step is left, and the reason is the device's own."""
    engine = make_engine(load_tiny("llama"))
    _refuse(engine, lambda _call, _batch: True)
    engine.add(make_request(0, range(30, 50)))
    with pytest.raises(OutOfDeviceMemory, match="2 GiB"):
        engine.step()


def test_engine_stops_at_once_where_the_device_has_failed(load_tiny):
    """Nothing is tried again on a device that answers every call with the same error."""
    engine = make_engine(load_tiny("llama"))
    engine.add(make_request(0, range(30, 50)))
    collect(engine, {})
    calls = []

    def broken(batch):
        calls.append(batch)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine._runner.run = broken
    with pytest.raises(DeviceFailed, match="start the server again"):
        engine.step()
    assert len(calls) == 1
