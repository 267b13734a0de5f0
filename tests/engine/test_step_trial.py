import pytest

from seedance_server.engine.step_cost import USUAL_COST
from seedance_server.engine.step_trial import measure_step_cost
from tests.engine.driving import drive, make_engine, make_request


class _Streams:
    """A device, runner and sampler in one: two milliseconds, and one more for each row after the second."""

    def __init__(self, *, times=1.0):
        self.rows, self.times, self.now_s = [], times, 0.0

    def run(self, batch):
        self.rows.append(batch.tokens)
        self.now_s += self.times * 1e-3 * (1 + max(0, batch.tokens - 2))

    def sample(self, _logits, rows):
        assert len(rows) == self.rows[-1]
        self.now_s += self.times * 1e-3

    def trim(self):
        self.trimmed = True

    def mark(self):
        return self.now_s

    def seconds_between(self, start, end):
        return end - start


def _measure(model, streams, **settings):
    engine = make_engine(model, **settings)
    cost = measure_step_cost(streams, streams, engine._pool, streams, longest_chunk=256)
    engine.check_integrity()
    assert engine.statistics().used_blocks == 0
    return cost


def test_step_cost_is_what_steps_took(load_tiny):
    """Each size is run several times over a pool that is given back whole."""
    streams = _Streams()
    cost = _measure(load_tiny("gemma3"), streams)
    assert [cost.of(rows) for rows in (1, 2, 4, 16)] == pytest.approx([1, 1, 2, 8])
    assert streams.rows == [1, 2, 4, 8, 16] * 4
    assert streams.trimmed


def test_step_cost_is_measured_once_where_steps_are_slow(load_tiny):
    """A start doesn't wait for a large model to take the same step again and again."""
    streams = _Streams(times=1000)
    assert _measure(load_tiny("llama"), streams).of(4) == pytest.approx(2)
    assert streams.rows == [1, 2, 4, 8, 16]


def test_step_cost_is_the_usual_one_where_nothing_can_be_measured(load_tiny):
    """A pool of a few tokens, a clock that stands still."""
    assert _measure(load_tiny("llama"), _Streams(), blocks=3) == USUAL_COST
    assert _measure(load_tiny("llama"), _Streams(times=0)) == USUAL_COST


def test_step_cost_is_measured_through_the_runner_of_an_engine_that_answers_afterwards(load_tiny):
    """What the trial leaves in the cache is nobody's."""
    plain = drive(make_engine(load_tiny("qwen2")), [make_request(0, range(5, 30), max_tokens=20)])[0]
    engine = make_engine(load_tiny("qwen2"))
    assert "rows" in engine.measure_steps()
    assert engine._speculation.cost is not USUAL_COST
    assert drive(engine, [make_request(0, range(5, 30), max_tokens=20)])[0].token_ids == plain.token_ids
