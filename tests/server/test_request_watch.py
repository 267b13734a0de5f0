"""Tests of `seedance_server.request_watch`."""

import pytest

from seedance_server.engine.sequence import StageTiming
from seedance_server.request_watch import Outcome, RequestWatch, Stage
from seedance_wire.messages import ErrorCode


class Notes:
    """Writes down what an observer is told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *arguments: self.told.append(name)


def watching(times=(0.0,)):
    notes, left = Notes(), list(times)
    return RequestWatch((notes,), lambda: left.pop(0) if len(left) > 1 else left[0]), notes


@pytest.mark.parametrize("first", ["end", "park", "replay"])
def test_watch_ends_once_whatever_comes_after(first: str) -> None:
    """One request, one word: who counts them never counts one twice."""
    watch, notes = watching()
    watch.end(Outcome.STOP) if first == "end" else getattr(watch, first)()
    watch.end(Outcome.ERROR, ErrorCode.INTERNAL)
    watch.park()
    watch.replay()
    assert notes.told == ["began", {"end": "ended", "park": "parked", "replay": "replayed"}[first]]
    assert watch.outcome is (Outcome.STOP if first == "end" else None)
    assert watch.code is None


def test_watch_notes_each_stage_the_first_time() -> None:
    """A stream that was parked has its turn again; the time that counts is the first."""
    watch, notes = watching([5.0, 6.0, 7.5, 9.0])
    assert watch.reach(Stage.TURN)
    assert not watch.reach(Stage.TURN)
    assert watch.ttft_s is None
    assert watch.reach(Stage.FIRST_WRITTEN)
    assert not watch.reach(Stage.FIRST_WRITTEN)
    assert watch.stages == {Stage.TURN: 6.0, Stage.FIRST_WRITTEN: 7.5}
    assert watch.ttft_s == 2.5
    assert notes.told == ["began", "wrote_first"]


def test_watch_says_nothing_of_a_first_frame_that_is_the_end() -> None:
    """There was no token whose time it could be."""
    watch, notes = watching()
    watch.end(Outcome.ABORT)
    watch.reach(Stage.FIRST_WRITTEN)
    assert notes.told == ["began", "ended"]


def test_watch_counts_egress_from_the_token_on_so_that_the_stages_add_up() -> None:
    """The stages up to the first token follow each other; the rest, whatever it was, is egress."""
    watch, _ = watching([10.0, 13.0])
    assert watch.egress_s == 0
    watch.note_timing(StageTiming(queue_s=1.0, preprocess_s=0.25, prefill_s=0.5, first_decode_s=0.125))
    watch.note_timing(StageTiming(queue_s=99.0))
    assert watch.egress_s == 0
    watch.reach(Stage.FIRST_WRITTEN)
    assert watch.timing.total_s == 1.875
    assert watch.timing.total_s + watch.egress_s == watch.ttft_s == 3.0


def test_watch_of_a_token_that_was_written_before_it_was_chosen_has_no_egress() -> None:
    """Clocks of two threads may differ by a hair; a stage is never negative."""
    watch, _ = watching([10.0, 11.0])
    watch.reach(Stage.FIRST_WRITTEN)
    watch.note_timing(StageTiming(queue_s=1.5))
    assert watch.egress_s == 0
