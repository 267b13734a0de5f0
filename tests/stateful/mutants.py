"""Seeded bugs, each of which the state machine must catch: the proof that it can fail.

Every mutant exchanges one decision, of a node, of the journal, of the application or of the client's core,
for a mistake that somebody could make there. `python -m tests.stateful.mutants` plays all of them and prints
by which example each was caught.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from unittest import mock

from attrs import field, frozen
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from seedance_sdk import reconnect
from seedance_sdk.circuit_breaker import CircuitBreaker, CircuitState, ConnectionAttempt
from seedance_server.journal.memory_shelf import HeldSession
from seedance_server.journal.records import FrameRecord, NewStream, StreamRecord, Submission
from seedance_wire.codes import ResumeFailure
from seedance_wire.cursor import Numbered, ReceiveCursor, Verdict
from seedance_wire.messages import Frame, Resume, Submit
from tests.stateful.application import Application
from tests.stateful.circuit_machine import CircuitMachine
from tests.stateful.egress import OwnedSession, Peer
from tests.stateful.exactly_once import ExactlyOnce, Parts
from tests.stateful.live_stream import LiveStream, Reader
from tests.stateful.node import Node
from tests.stateful.shared_journal import SharedJournal

__all__ = ["MUTANTS", "Catch", "Mutant", "catch"]


class _NoFence(SharedJournal):
    def _owned(self, session_id: str, epoch: int) -> HeldSession:
        return super()._owned(session_id, self._shelf.sessions[session_id].record.epoch)


class _FinalUnfenced(SharedJournal):
    async def append(
        self,
        session_id: str,
        epoch: int,
        stream_id: int,
        frames: Sequence[FrameRecord],
        *,
        finish: str | None = None,
    ) -> int:
        if finish is not None:
            held = self._shelf.sessions.get(session_id)
            current = held.record.epoch if held else epoch
            if current != epoch:
                super_append = super(SharedJournal, self).append
                await super_append(session_id, current, stream_id, frames, finish=finish)
                self.ledger.appended((session_id, stream_id), epoch, frames, finish)
        return await super().append(session_id, epoch, stream_id, frames, finish=finish)


class _SendBeforeCommit(Node):
    def live_frames(self, stream: LiveStream, after_id: int) -> list[Frame]:
        pending = [frame for frame in stream.pending if frame.id > after_id]
        return [*super().live_frames(stream, after_id), *pending]


class _OneTooFar(Node):
    def replay_from(self, last_processed_id: int, record: StreamRecord) -> int:
        return min(last_processed_id + 1, record.last_id)


class _OneTooEarly(Node):
    def replay_from(self, last_processed_id: int, record: StreamRecord) -> int:
        return max(last_processed_id - 1, 0)


class _SilentTruncation(Node):
    def find(self, session: OwnedSession, resume: Resume) -> tuple[ResumeFailure | None, StreamRecord | None]:
        code, record = super().find(session, resume)
        gone = code in (ResumeFailure.EXPIRED, ResumeFailure.TRUNCATED) and record is not None
        return (None, record) if gone else (code, record)

    def replay_from(self, last_processed_id: int, record: StreamRecord) -> int:
        return max(last_processed_id, record.first_available_id - 1)


class _Gap(Node):
    def live_frames(self, stream: LiveStream, after_id: int) -> list[Frame]:
        crossing = after_id + 1 == stream.tail_start and after_id > 0
        return super().live_frames(stream, after_id + crossing)


class _Overlap(Node):
    def hand_over(self, stream: LiveStream) -> int:
        return super().hand_over(stream) + 1

    def live_frames(self, stream: LiveStream, after_id: int) -> list[Frame]:
        crossing = after_id == stream.tail_start
        return super().live_frames(stream, after_id - crossing)


class _LostWakeUp(Node):
    def wake(self, peer: Peer, reader: Reader) -> None:
        pass


class _KeyAlone(Node):
    def fingerprint(self, submit: Submit) -> bytes:
        return bytes(32)


class _StaleMemory(Node):
    def remembers(self, session: OwnedSession, epoch: int) -> bool:
        return True


class _ExecutedTwice(SharedJournal):
    async def submit(self, session_id: str, epoch: int, stream: NewStream) -> Submission:
        submission = await super().submit(session_id, epoch, stream)
        if submission.replayed and submission.stream.last_id == 0:
            self._shelf.requests.clear()
            return await super().submit(session_id, epoch, stream)
        return submission


class _WindowPerConnection(Node):
    def taken(self, resume: Resume) -> int:
        return resume.last_processed_id


class _MovedStartsAgain(SharedJournal):
    async def submit(self, session_id: str, epoch: int, stream: NewStream) -> Submission:
        known = self._shelf.requests.get(
            (self._shelf.sessions[session_id].record.tenant, stream.idempotency_key)
        )
        if known is not None and known.stream.record.session_id != session_id:
            self._shelf.requests.clear()
            self.ledger.started.clear()
        return await super().submit(session_id, epoch, stream)


class _AckOnReceipt(Application):
    def _given(self, frame: Frame) -> None:
        super()._given(frame)
        self.session.acknowledge([(frame.stream_id, frame.id)])


_judge = ReceiveCursor.judge


def _no_dedupe(cursor: ReceiveCursor, frame: Numbered) -> Verdict:
    verdict = _judge(cursor, frame)
    return Verdict.APPLY if verdict is Verdict.DUPLICATE else verdict


def _stale_applied(cursor: ReceiveCursor, frame: Numbered) -> Verdict:
    verdict = _judge(cursor, frame)
    return Verdict.APPLY if verdict is Verdict.GAP else verdict


def _judging(judge: object) -> AbstractContextManager[object]:
    return mock.patch.object(ReceiveCursor, "judge", judge)


def _counting_1001() -> AbstractContextManager[object]:
    counted = (1001, 1005, 1006, 1011, 1012, 1015)
    return mock.patch.object(reconnect, "is_failure", lambda error: error.close_code in counted)


def _two_probes() -> AbstractContextManager[object]:
    def attempt(breaker: CircuitBreaker, now_s: float) -> ConnectionAttempt | None:
        breaker.expire(now_s)
        waiting = breaker.state is CircuitState.OPEN and now_s < breaker._until_s
        return None if waiting else ConnectionAttempt()

    return mock.patch.object(CircuitBreaker, "attempt", attempt)


def _unheard_progress() -> AbstractContextManager[object]:
    return mock.patch.object(CircuitBreaker, "progressed", return_value=None)


@frozen
class Mutant:
    """One seeded bug.

    Attributes:
        name: What it is.
        parts: With the mistake in one of them.
        quick: Caught within a second or two, so that every run of the tests can see it.
        examples: Histories that are tried at most.
        machine: What plays it.
        seed: Of the histories, one of a few that were tried and show it soon; None: the machine's own.
    """

    name: str
    parts: Parts
    quick: bool = False
    examples: int = 5_000
    machine: type[ExactlyOnce | CircuitMachine] = ExactlyOnce
    seed: int | None = None


MUTANTS = (
    Mutant("no fence", Parts(journal=_NoFence), quick=True),
    Mutant("send before commit", Parts(node=_SendBeforeCommit), quick=True, seed=3),
    Mutant("replay begins one frame too late", Parts(node=_OneTooFar), quick=True),
    Mutant("replay begins one frame too early", Parts(node=_OneTooEarly)),
    Mutant("silent truncation", Parts(node=_SilentTruncation)),
    Mutant("no dedupe", Parts(patched=lambda: _judging(_no_dedupe))),
    Mutant("gap not noticed", Parts(patched=lambda: _judging(_stale_applied))),
    Mutant("ack on receipt", Parts(application=_AckOnReceipt), quick=True, seed=3),
    Mutant("gap at the hand-over from replay to live", Parts(node=_Gap), quick=True),
    Mutant("overlap at the hand-over from replay to live", Parts(node=_Overlap), quick=True),
    Mutant("lost wake-up", Parts(node=_LostWakeUp), quick=True, seed=9),
    Mutant("key without fingerprint", Parts(node=_KeyAlone), quick=True),
    Mutant("epoch unchecked on the final frame", Parts(journal=_FinalUnfenced)),
    Mutant("memory of an older epoch survives", Parts(node=_StaleMemory)),
    Mutant("resent request starts again", Parts(journal=_ExecutedTwice)),
    Mutant("request of another session starts again", Parts(journal=_MovedStartsAgain)),
    Mutant("window begins anew with each connection", Parts(node=_WindowPerConnection), quick=True, seed=11),
    Mutant(
        "breaker counts an orderly goodbye", Parts(patched=_counting_1001), quick=True, machine=CircuitMachine
    ),
    Mutant("breaker lets two probes out", Parts(patched=_two_probes), quick=True, machine=CircuitMachine),
    Mutant("breaker forgets use", Parts(patched=_unheard_progress), quick=True, machine=CircuitMachine),
)


_INVARIANTS = (
    "state.generations_begin_once()",
    "state.windows_count_what_was_taken()",
    "state.agrees_with_the_diary()",
)
"""Hypothesis lists them after each step."""


@frozen
class Catch:
    """How a mutant was caught.

    Attributes:
        mutant: Which.
        rule: What it broke, in the words of the assertion.
        example: The shortest history found that shows it, a step a line.
        examples: Histories played before it was found.
        seconds: That it took, shrinking included.
    """

    mutant: Mutant
    rule: str
    example: tuple[str, ...]
    seconds: float = field(eq=False)


def catch(mutant: Mutant, *, shrink: bool = True) -> Catch | None:
    """Plays a mutant until the machine catches it; None if it never does."""
    machine = type("Machine", (mutant.machine,), {"parts": mutant.parts})
    if mutant.seed is not None:
        machine = seed(mutant.seed)(machine)
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    tried = settings(
        max_examples=mutant.examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=mutant.seed is None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    lines: list[str] = []
    started_s = time.monotonic()
    try:
        with with_reporter(lines.append):
            run_state_machine_as_test(machine, settings=tried)
    except Exception as error:  # noqa: BLE001 - whatever the mutant broke is how it was caught
        steps = "\n".join([*lines, *getattr(error, "__notes__", ())]).splitlines()
        example = tuple(line.strip() for line in steps if line.strip().startswith("state."))
        example = tuple(line for line in example if line not in _INVARIANTS)
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return Catch(mutant, said, example, time.monotonic() - started_s)
    return None


def main(words: Sequence[str] = ()) -> int:
    """Plays the mutants with one of ``words`` in their names, or all, and prints how each was caught.

    Returns:
        1 if one was not.
    """
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    missed = 0
    for mutant in chosen:
        caught = catch(mutant)
        if caught is None:
            missed += 1
            sys.stdout.write(f"NOT CAUGHT  {mutant.name}, in {mutant.examples} histories\n")
        else:
            sys.stdout.write(f"caught      {mutant.name}, in {caught.seconds:.1f} s\n")
            sys.stdout.write(f"            {caught.rule}\n")
            for step in caught.example:
                sys.stdout.write(f"              {step}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} mutants caught\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
