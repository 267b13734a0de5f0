"""Driving a level, and what is made of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from engine.measurement import (
    Arrivals,
    MeasurementFailed,
    arrivals,
    burst,
    figures_of_arrivals,
    figures_of_burst,
    medians,
)
from engine.peer import Ask
from engine.workload import Request
from figures import Answer
from seedance_sdk import StageTiming


def answer(started_s: float, *arrivals_s: float, tokens: int | None = None) -> Answer:
    count = len(arrivals_s) if tokens is None else tokens
    return Answer(started_s, arrivals_s[-1], list(arrivals_s), count)


def test_figures_of_a_burst_span_from_the_first_request_to_the_last_piece() -> None:
    """Prefill and waiting are part of what a burst takes."""
    figures = figures_of_burst([answer(10.0, 10.5, 10.6), answer(10.1, 10.6, 12.0)], 2)
    assert figures["tokens_per_s"] == pytest.approx(4 / 2.0)
    assert figures["itl_p50_ms"] == pytest.approx(100)
    assert figures["itl_p99_ms"] == pytest.approx(1400)
    assert figures["ttft_p50_ms"] == pytest.approx(500)


def test_figures_of_a_burst_tell_how_much_a_piece_holds() -> None:
    """Whoever sends four tokens at a time has long gaps, and these are not between tokens."""
    assert figures_of_burst([answer(0.0, 1.0, 2.0, tokens=8)], 8)["tokens_per_piece"] == 4


def test_stages_of_the_first_token_add_up_to_it() -> None:
    """What the server doesn't tell of is the client's and the way there; who tells nothing has no stages."""
    told = [answer(0.0, 0.1, 0.2), answer(0.0, 0.2, 0.3)]
    for each, queue_ms in zip(told, (10.0, 30.0), strict=True):
        each.timing = StageTiming(queue_ms=queue_ms, prefill_ms=60.0, egress_ms=5.0)
    figures = figures_of_burst(told, 2)
    assert figures["ttft_mean_ms"] == pytest.approx(150)
    assert figures["queue_ms"] == pytest.approx(20)
    assert figures["client_ms"] == pytest.approx(150 - 20 - 60 - 5)
    assert "queue_ms" not in figures_of_burst([*told, answer(0.0, 0.1, 0.2)], 2)


def test_medians_condense_each_figure_by_itself() -> None:
    """One hiccup of several turns doesn't decide a round."""
    assert medians([{"a": 1.0, "b": 9.0}, {"a": 5.0, "b": 2.0}, {"a": 2.0, "b": 3.0}]) == {"a": 2.0, "b": 3.0}


@pytest.mark.parametrize(
    "bad", [answer(0.0, 1.0, tokens=47), Answer(0.0, 1.0, error="refused")], ids=["short", "failed"]
)
def test_figures_are_refused_when_an_answer_is_not_whole(bad: Answer) -> None:
    """An engine that answers less must not look faster."""
    with pytest.raises(MeasurementFailed):
        figures_of_burst([answer(0.0, 1.0, tokens=48), bad], 48)
    with pytest.raises(MeasurementFailed):
        figures_of_arrivals(Arrivals([bad], []), 48)


def test_figures_of_arrivals_count_while_all_residents_decode() -> None:
    """Before the last has begun and after the first has ended, the batch is smaller than the level."""
    found = Arrivals([answer(0.0, 1.0, 3.0, 3.1, 3.2), answer(0.0, 3.0, 3.1, 3.2, 9.0)], [answer(2.0, 2.25)])
    figures = figures_of_arrivals(found, 4)
    assert figures["itl_p50_ms"] == pytest.approx(100)
    assert figures["itl_p99_to_p50"] == pytest.approx(1)
    assert figures["ttft_p50_ms"] == pytest.approx(250)
    assert figures["arrived"] == 1


def test_figures_of_arrivals_leave_out_what_nobody_saw() -> None:
    """Without an arrival there is no time to its first token, not one of zero."""
    assert "ttft_p50_ms" not in figures_of_arrivals(Arrivals([answer(0.0, 1.0, 2.0)], []), 2)


class Engine:
    """Answers each request after as many seconds as it has tokens; remembers when each came."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []

    async def ask(self, request: Request) -> Answer:
        started_s = trio.current_time()
        self.asked.append((started_s, request.prompt))
        await trio.sleep(request.max_tokens)
        return answer(started_s, trio.current_time(), tokens=request.max_tokens)

    @asynccontextmanager
    async def connect(self, streams: int) -> AsyncIterator[Sequence[Ask]]:
        yield [self.ask] * streams


async def test_burst_asks_all_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """N streams are N requests in flight."""
    engine, start_s = Engine(), trio.current_time()
    answers = await burst(engine.connect, [Request("a", 3), Request("b", 5)])
    assert len(answers) == 2
    assert trio.current_time() - start_s == 5
    assert {when for when, _ in engine.asked} == {start_s}


async def test_arrivals_come_at_their_times_and_end_with_the_residents(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Newcomers disturb the residents, and are not waited for."""
    engine, start_s = Engine(), trio.current_time()
    newcomers = [Request("first", 2), Request("cut", 100), Request("late", 1)]
    found = await arrivals(engine.connect, [Request("a", 10), Request("b", 10)], newcomers, [1.0, 4.0, 60.0])
    assert trio.current_time() - start_s == 10
    assert [(when - start_s, name) for when, name in engine.asked[2:]] == [(1.0, "first"), (4.0, "cut")]
    assert len(found.residents) == 2
    assert len(found.arrived) == 1
