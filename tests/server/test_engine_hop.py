"""Tests of `seedance_server.engine_hop`."""

from collections import deque

import pytest

from seedance_server.engine.errors import InvalidParameter
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.engine_hop import Command, Heeded, advance
from seedance_server.testing import ScriptedEngine


def adding(id_: int) -> Command:
    request = GenerationRequest(id=id_, prompt_ids=(1,), params=SamplingParams(), arrival_s=0.0)
    return Command(id_, lambda engine: engine.add(request))


def refused(_engine) -> None:
    raise InvalidParameter("prompt", "isn't to its taste")


def test_hop_does_commands_then_a_step_and_says_how_the_engine_stands() -> None:
    """What was asked for is done before the step; the figures are of after it."""
    times = iter([1.0, 3.5, 3.6])
    result = advance(ScriptedEngine(), deque([adding(1), adding(2)]), lambda: next(times))
    assert [output.id for output in result.outputs] == [1, 2]
    assert result.has_work
    assert (result.statistics.running, result.statistics.generated_tokens) == (2, 2)
    assert (result.before.decided_s, result.ended_s, result.after.decided_s) == (1.0, 3.5, 3.6)


def test_hop_goes_on_without_a_request_that_the_engine_refuses() -> None:
    """One request's error is its own; the others have their step."""
    result = advance(ScriptedEngine(), deque([Command(7, refused), adding(1)]), lambda: 0.0)
    [(id_, error)] = result.rejected
    assert id_ == 7
    assert isinstance(error, InvalidParameter)
    assert [output.id for output in result.outputs] == [1]


def test_hop_steps_only_an_engine_that_has_work() -> None:
    """A hop for commands alone doesn't run an empty batch."""
    engine = ScriptedEngine()
    assert advance(engine, deque(), lambda: 0.0).outputs == ()
    assert engine.steps == 0
    with pytest.raises(RuntimeError, match="scripted"):
        advance(ScriptedEngine(fail_at_step=1), deque([adding(1)]), lambda: 0.0)


def test_hop_heeds_what_was_asked_for_during_the_step_before_it_ends() -> None:
    """The next step can't be made without it, whatever comes between; each is timed where it was heeded."""
    commands = deque([adding(1), Command(1, lambda engine: engine.throttle(1, True), asked_s=0.5)])

    class Engine(ScriptedEngine):
        def step(self):
            commands.append(Command(1, lambda engine: engine.pause(1), asked_s=2.0))
            commands.append(Command(7, refused))
            return super().step()

    times = iter([1.0, 3.5, 3.6])
    engine = Engine()
    result = advance(engine, commands, lambda: next(times))
    assert engine.paused == (1,)
    assert not result.has_work
    assert [id_ for id_, _ in result.rejected] == [7]
    assert result.before == Heeded([0.5], 1.0)
    assert result.after == Heeded([2.0], 3.6)
    assert not commands
