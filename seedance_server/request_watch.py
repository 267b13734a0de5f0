"""One request as whoever watches the server sees it: which stage it reached when, and how it ended.

A watch is made when a request comes and goes with it: to the stream that it becomes, or to its refusal. It
ends once, with one of the words of `Outcome`, whatever happens on the way; what leaves memory without an end
(its client may come back for it, here or elsewhere) is parked instead, and whoever takes it up has a new
watch. Watching is plain calls: nothing here waits, and an observer that raises is our bug.

It must not know metrics, traces or logs, nor what is said on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from attrs import define, field

from seedance_server.engine.sequence import SequenceOutput, StageTiming
from seedance_wire.messages import ErrorCode, FlowAction, Usage

__all__ = ["Observer", "Outcome", "RequestWatch", "ResumeOutcome", "Stage"]


class Outcome(Enum):
    """How a request ended; each ends in one of them."""

    STOP = "stop"  # end of sequence, stop token or stop string
    LENGTH = "length"  # the most tokens that it may have
    ABORT = "abort"  # its client cancelled it, or left
    ERROR = "error"  # an ERROR frame: the engine, the journal, its deadline
    REFUSED = "refused"  # it never began


class Stage(Enum):
    """Where a request has come to; each is reached once at most, in this order."""

    PREPARED = "prepared"  # its prompt is ids
    COMMITTED = "committed"  # it is written down
    TURN = "turn"  # it went to the engine
    FIRST_TEXT = "first text"  # the first one was chosen whose text can be shown
    FIRST_WRITTEN = "first written"  # its first frame has left for a socket


class ResumeOutcome(Enum):
    """What became of a client's wish to go on with a stream."""

    LIVE = "live"  # there are more frames to come
    ENDED = "ended"  # what there is was sent again
    REJECTED = "rejected"


class Observer(Protocol):
    """Who watches requests."""

    def began(self, watch: RequestWatch) -> None:
        """A request came, or one that was parked is taken up."""

    def wrote_first(self, watch: RequestWatch) -> None:
        """Its first frame has left for a socket."""

    def ended(self, watch: RequestWatch) -> None:
        """It has its outcome; nothing follows."""

    def parked(self, watch: RequestWatch) -> None:
        """It left memory without an outcome; nothing follows."""

    def replayed(self, watch: RequestWatch) -> None:
        """It turned out to be one that was made before; nothing follows."""

    def flowed(self, action: FlowAction, held_s: float | None) -> None:
        """A stream's pace changed; with the seconds that it stood, where it goes on after that."""

    def resumed(self, outcome: ResumeOutcome, replayed_frames: int) -> None:
        """A client came back to a stream; so many frames are sent again."""


@define(eq=False)
class RequestWatch:
    """Watches one request.

    Attributes:
        observers: Who is told.
        clock: Seconds, the engine's.
        tenant: Whose request it is.
        session: The session that it was made in.
        canary: Whether its client marked it as one that is looked at apart.
        traceparent: The trace that it belongs to, as W3C Trace Context has it.
        is_taken_up: Whether it began before, and was parked.
        arrival_s: When it came, by ``clock``.
        stages: When which stage was reached.
        ended_s: When it was over, by ``clock``.
        stream_id: Its stream's number in the session.
        usage: Its tokens, once they are known.
        timing: Where the time to its first token went, likewise; egress apart.
        outcome: How it ended.
        code: Why, for one that was refused or ended with an error.
    """

    observers: Sequence[Observer]
    clock: Callable[[], float]
    tenant: str = ""
    session: str = ""
    canary: bool = False
    traceparent: str | None = None
    is_taken_up: bool = False
    arrival_s: float = field(init=False)
    stages: dict[Stage, float] = field(init=False, factory=dict)
    ended_s: float | None = field(init=False, default=None)
    stream_id: int | None = None
    usage: Usage | None = field(init=False, default=None)
    timing: StageTiming | None = field(init=False, default=None)
    outcome: Outcome | None = field(init=False, default=None)
    code: ErrorCode | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.arrival_s = self.clock()
        for observer in self.observers:
            observer.began(self)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, was parked or replayed."""
        return self.ended_s is not None

    @property
    def ttft_s(self) -> float | None:
        """From its arrival until its first frame left; None before that."""
        written_s = self.stages.get(Stage.FIRST_WRITTEN)
        return None if written_s is None else written_s - self.arrival_s

    @property
    def egress_s(self) -> float:
        """From its first token until its first frame left; 0 before that, and where there was none."""
        first_s, written_s = self.stages.get(Stage.FIRST_TEXT), self.stages.get(Stage.FIRST_WRITTEN)
        return 0.0 if first_s is None or written_s is None else max(0.0, written_s - first_s)

    def reach(self, stage: Stage) -> bool:
        """It has come so far; only the first time counts, and is True."""
        if stage in self.stages:
            return False
        self.stages[stage] = self.clock()
        if stage is Stage.FIRST_WRITTEN and not self.is_over:
            for observer in self.observers:
                observer.wrote_first(self)
        return True

    def note_outputs(self, outputs: Sequence[SequenceOutput]) -> None:
        """What came of it; with the first text comes where its time went."""
        if self.timing is not None:
            return
        for output in outputs:
            if output.timing is not None:
                self.note_timing(output.timing)
            elif output.finish is not None and output.text:  # all text came with the end
                self.note_timing(output.finish.timing)

    def note_timing(self, timing: StageTiming) -> None:
        """Where the time to its first token went; only the first time counts.

        The stages follow each other without a gap, so their sum says when that token was chosen.
        """
        if self.timing is None:
            self.timing = timing
            self.stages[Stage.FIRST_TEXT] = self.arrival_s + timing.total_s

    def end(self, outcome: Outcome, code: ErrorCode | None = None) -> None:
        """It is over; the first word counts, so that a second one can't change it."""
        if self._close():
            self.outcome, self.code = outcome, code
            for observer in self.observers:
                observer.ended(self)

    def park(self) -> None:
        """It leaves memory without an end. Nothing if it is over."""
        if self._close():
            for observer in self.observers:
                observer.parked(self)

    def replay(self) -> None:
        """It is one that was made before, and is answered with that one's stream."""
        if self._close():
            for observer in self.observers:
                observer.replayed(self)

    def flow(self, action: FlowAction, held_s: float | None) -> None:
        """Its pace changed; see `Observer.flowed`."""
        for observer in self.observers:
            observer.flowed(action, held_s)

    def _close(self) -> bool:
        if self.is_over:
            return False
        self.ended_s = self.clock()
        return True
