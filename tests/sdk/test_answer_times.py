"""What counts as TTFT, ITL, TPOT, and what an outage is not allowed to pass for."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedance_sdk.answer_times import AnswerTimes
from seedance_sdk.latency_report import AnswerFigures
from seedance_sdk.latency_series import LatencySeries, Outcome


class Answer:
    """An answer that was asked for at 100 s, and what is told of it."""

    def __init__(self, *, resumed: bool = False) -> None:
        self.series = LatencySeries(threading.RLock())
        self.times = AnswerTimes(lambda: self.series, 100.0, resumed=resumed)
        self.frames = 0

    def arrive(self, tokens: int, at_s: float) -> None:
        self.frames += 1
        self.times.arrived(self.frames, tokens, 100 + at_s)

    def finish(self) -> AnswerFigures:
        self.times.ended(Outcome.FINISHED)
        return self.series.figures()


def test_ttft_is_from_the_call_to_the_first_token() -> None:
    """A frame that carries none is not it."""
    answer = Answer()
    answer.arrive(0, 1.0)
    answer.arrive(1, 2.0)
    figures = answer.finish()
    assert (figures.ttft.count, figures.ttft.min_ms) == (1, 2000)
    assert figures.itl.count == 0
    assert figures.tpot.count == 0  # one token has no gap
    assert figures.total.min_ms == 2000


def test_tokens_of_one_frame_arrive_together() -> None:
    """A frame of three ends one gap, and the two within it are zero."""
    answer = Answer()
    answer.arrive(2, 1.0)
    answer.arrive(3, 1.4)
    figures = answer.finish()
    assert (figures.tokens, figures.itl.count, figures.piece_gap.count) == (5, 4, 1)
    assert figures.itl.p50_ms == 0
    assert figures.itl.max_ms == pytest.approx(400)
    assert figures.histogram[0].count == 3
    assert figures.tpot.min_ms == pytest.approx(100)


def test_a_frame_of_usage_alone_changes_no_time() -> None:
    """The last frame has no tokens: neither ITL nor TPOT nor the total know when it came."""
    answer = Answer()
    answer.arrive(1, 1.0)
    answer.arrive(1, 1.5)
    answer.arrive(0, 9.0)
    figures = answer.finish()
    assert figures.tokens == 2
    assert figures.itl.max_ms == pytest.approx(500)
    assert figures.tpot.max_ms == pytest.approx(500)
    assert figures.total.max_ms == pytest.approx(1500)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), min_size=1, max_size=30))
def test_tpot_is_the_mean_of_the_gaps_and_ttft_plus_gaps_the_total(frames: list[tuple[int, int]]) -> None:
    """TPOT = (E2E - TTFT) / (n - 1), and all n - 1 gaps are there, however frames cut the tokens."""
    answer, now_s = Answer(), 0.0
    for tokens, gap_ms in frames:
        now_s += gap_ms / 1e3
        answer.arrive(tokens, now_s)
    figures = answer.finish()
    tokens = sum(tokens for tokens, _ in frames)
    assert figures.tokens == tokens
    assert figures.itl.count == max(0, tokens - 1)
    assert figures.tpot.count == (tokens > 1)
    if tokens > 1:
        assert None not in (figures.total.mean_ms, figures.ttft.mean_ms, figures.itl.mean_ms)
        between = (figures.total.mean_ms or 0) - (figures.ttft.mean_ms or 0)
        assert figures.tpot.mean_ms == pytest.approx(between / (tokens - 1), abs=1e-6)
        assert figures.itl.mean_ms == pytest.approx(figures.tpot.mean_ms, abs=1e-6)


def test_an_outage_is_no_gap_and_its_replay_no_fast_tokens() -> None:
    """The reader waited 30 s for no slow token, and 40 tokens at once say nothing of the model."""
    answer = Answer()
    answer.arrive(1, 1.0)
    answer.arrive(1, 1.1)
    answer.times.disconnected()
    answer.times.disconnected()  # an attempt that failed
    answer.times.goes_on(last_id=42)
    for _ in range(40):
        answer.arrive(1, 31.1)
    answer.arrive(1, 31.2)  # live, but since the replay and not since its forerunner
    answer.arrive(1, 31.3)
    figures = answer.finish()
    assert (figures.interrupted, figures.replayed, figures.tokens) == (1, 41, 44)
    assert (figures.outage.count, figures.outage.max_ms) == (1, pytest.approx(30_000))
    assert figures.itl.count == 2
    assert figures.itl.max_ms == pytest.approx(100)
    assert (figures.ttft.count, figures.tpot.count, figures.total.count) == (1, 0, 0)
    assert figures.finished == 1


def test_an_outage_with_nothing_to_replay_ends_with_the_first_live_token() -> None:
    """From there on, gaps are gaps again."""
    answer = Answer()
    answer.arrive(1, 1.0)
    answer.times.disconnected()
    answer.times.goes_on(last_id=1)
    answer.arrive(1, 3.0)
    answer.arrive(1, 3.1)
    figures = answer.finish()
    assert figures.outage.max_ms == pytest.approx(2000)
    assert (figures.replayed, figures.itl.count) == (1, 1)


def test_a_connection_lost_before_the_first_token_spoils_the_ttft() -> None:
    """It is an outage from the call on; a TTFT of it would be the network's."""
    answer = Answer()
    answer.times.disconnected()
    answer.arrive(1, 5.0)
    answer.arrive(1, 5.1)
    figures = answer.finish()
    assert figures.ttft.count == 0
    assert figures.outage.max_ms == pytest.approx(5000)
    assert figures.itl.count == 1


def test_two_outages_are_two_and_one_interrupted_answer() -> None:
    """Outages are counted by themselves, answers by theirs."""
    answer = Answer()
    answer.arrive(1, 1.0)
    for second in (2, 3):
        answer.times.disconnected()
        answer.arrive(1, float(second))
    figures = answer.finish()
    assert (figures.outage.count, figures.interrupted) == (2, 1)


def test_a_resumed_stream_has_gaps_only() -> None:
    """Another reader had its beginning: what was there already is late, and the call is not known."""
    answer = Answer(resumed=True)
    answer.times.goes_on(last_id=2)
    for at_s in (0.5, 0.5, 0.9, 1.0):
        answer.arrive(1, at_s)
    figures = answer.finish()
    assert (figures.ttft.count, figures.total.count, figures.tpot.count) == (0, 0, 0)
    assert (figures.itl.count, figures.replayed, figures.outage.count) == (1, 3, 0)
    assert figures.finished == 1


def test_the_end_is_counted_once_and_only_a_finished_answer_has_a_total() -> None:
    """One that was cancelled is as long as its reader wished."""
    answer = Answer()
    answer.arrive(1, 1.0)
    answer.arrive(1, 2.0)
    answer.times.ended(Outcome.CANCELLED)
    answer.times.ended(Outcome.FAILED)
    answer.times.disconnected()
    figures = answer.series.figures()
    assert (figures.cancelled, figures.failed, figures.interrupted) == (1, 0, 0)
    assert (figures.ttft.count, figures.itl.count) == (1, 1)
    assert (figures.total.count, figures.tpot.count) == (0, 0)


def test_tokens_that_were_not_taken_in_time_are_paced_and_no_slow_ones() -> None:
    """The server holds back for a slow reader: what that takes is the reader's own time."""
    answer = Answer()
    answer.arrive(1, 1.0)
    answer.arrive(1, 1.1)
    answer.times.held_back(True)
    answer.arrive(1, 4.0)
    answer.arrive(1, 9.0)
    answer.times.held_back(False)
    answer.arrive(1, 15.0)  # it began while the server held back
    answer.arrive(1, 15.1)
    figures = answer.finish()
    assert (figures.paced, figures.replayed, figures.tokens) == (3, 0, 6)
    assert figures.itl.count == 2
    assert figures.itl.max_ms == pytest.approx(100)
    assert (figures.total.count, figures.tpot.count, figures.ttft.count) == (0, 0, 1)


def test_a_lost_connection_forgets_that_the_server_held_back() -> None:
    """The next one begins with an empty window."""
    answer = Answer()
    answer.arrive(1, 1.0)
    answer.times.held_back(True)
    answer.times.disconnected()
    for at_s in (3.0, 3.1):
        answer.arrive(1, at_s)
    figures = answer.finish()
    assert (figures.paced, figures.replayed, figures.itl.count) == (0, 1, 1)


def test_an_answer_that_was_there_already_has_no_ttft() -> None:
    """A request sent again under its key gets what was made before: nobody waited for a model."""
    answer = Answer()
    answer.times.goes_on(last_id=2)
    for at_s in (0.1, 0.1, 0.5, 0.6):
        answer.arrive(1, at_s)
    figures = answer.finish()
    assert (figures.ttft.count, figures.replayed, figures.itl.count) == (0, 3, 1)


def test_a_stream_left_to_another_reader_has_no_end() -> None:
    """It is neither finished nor cancelled, and its connections concern it no more."""
    answer = Answer()
    answer.arrive(1, 1.0)
    answer.times.ended(None)
    answer.times.disconnected()
    figures = answer.series.figures()
    assert (figures.finished, figures.cancelled, figures.failed, figures.interrupted) == (0, 0, 0, 0)
