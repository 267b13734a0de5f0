"""The real journal in memory, shared by several nodes and played without an event loop.

Its rules are those of `MemoryJournal`, line by line; only the waiting is gone, so that a state machine can
call it step by step on a clock of its own. A ledger beside it notes who wrote what under which epoch: the
journal is trusted by nobody here, the ledger is what it must agree with.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from attrs import Factory, define

from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import ClaimedSession, FrameRecord, NewStream, Submission

__all__ = ["Ledger", "SharedJournal", "at_once"]

T = TypeVar("T")


def at_once(operation: Coroutine[Any, Any, T]) -> T:
    """The outcome of an operation that never waits."""
    try:
        operation.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("an operation of the journal waited")


@define
class Ledger:
    """What the journal acknowledged, kept apart from it.

    Attributes:
        epochs: Newest epoch by session.
        frames: Every frame ever written, by session and stream.
        ended: Streams that have their terminal frame.
        started: Stream by tenant, key and fingerprint.
        epoch_rises: Pairs of epochs of the same session, to be looked at by an invariant.
    """

    epochs: dict[str, int] = Factory(dict)
    frames: dict[tuple[str, int], list[FrameRecord]] = Factory(dict)
    ended: set[tuple[str, int]] = Factory(set)
    started: dict[tuple[str, bytes], tuple[bytes, tuple[str, int]]] = Factory(dict)

    def claimed(self, session_id: str, epoch: int) -> None:
        assert epoch > self.epochs.get(session_id, 0), "epochs never decrease"
        self.epochs[session_id] = epoch

    def submitted(self, tenant: str, stream: NewStream, submission: Submission) -> None:
        name = (submission.stream.session_id, submission.stream.stream_id)
        key = (tenant, stream.idempotency_key)
        if submission.moved_from is not None:
            fingerprint, former = self.started[key]
            assert (fingerprint, former[0]) == (stream.fingerprint, submission.moved_from)
            if former[0] in self.epochs:
                self.epochs[former[0]] += 1
            self.started[key] = (fingerprint, name)
            self.frames[name] = self.frames[former]  # known by both names: who read it then is held to it
            if former in self.ended:
                self.ended.add(name)
        elif key in self.started:
            assert self.started[key] == (stream.fingerprint, name), "one key, one request, one stream"
        else:
            assert not submission.replayed, "a key that was never used"
            self.started[key] = (stream.fingerprint, name)
            self.frames[name] = []

    def appended(
        self, name: tuple[str, int], epoch: int, frames: Sequence[FrameRecord], finish: str | None
    ) -> None:
        assert epoch == self.epochs[name[0]], "a fenced node appends nothing"
        assert name not in self.ended, "one terminal frame, and it is the last"
        written = self.frames[name]
        for frame in frames:
            assert frame.id == len(written) + 1, "ids without holes"
            assert frame.offset == sum(known.size for known in written), "offsets add up"
            written.append(frame)
        if finish is not None:
            self.ended.add(name)


class SharedJournal(MemoryJournal):
    """A `MemoryJournal` for callers without a loop.

    Args:
        clock: Seconds.
        limits: Bounds.
    """

    def __init__(self, clock: Callable[[], float], limits: JournalLimits) -> None:
        super().__init__(limits)
        self._clock = clock
        self._is_open = True
        self.ledger = Ledger()

    async def _enter(self) -> None:
        self._operations += 1

    def _now_ms(self) -> int:
        return round(self._clock() * 1e3)

    async def claim_session(self, session_id: str, tenant: str, token_hash: bytes) -> ClaimedSession:
        """See `Journal.claim_session`."""
        claimed = await super().claim_session(session_id, tenant, token_hash)
        self.ledger.claimed(session_id, claimed.session.epoch)
        return claimed

    async def submit(self, session_id: str, epoch: int, stream: NewStream) -> Submission:
        """See `Journal.submit`."""
        submission = await super().submit(session_id, epoch, stream)
        tenant = self._shelf.sessions[session_id].record.tenant
        self.ledger.submitted(tenant, stream, submission)
        return submission

    async def append(
        self,
        session_id: str,
        epoch: int,
        stream_id: int,
        frames: Sequence[FrameRecord],
        *,
        finish: str | None = None,
    ) -> int:
        """See `Journal.append`."""
        committed_ms = await super().append(session_id, epoch, stream_id, frames, finish=finish)
        self.ledger.appended((session_id, stream_id), epoch, frames, finish)
        return committed_ms

    def holds(self, session_id: str, stream_id: int, frame_id: int) -> bool:
        """Whether the ledger has that frame."""
        return frame_id <= len(self.ledger.frames.get((session_id, stream_id), ()))

    @property
    def rows(self) -> int:
        """Sessions, streams, requests and frames that are held."""
        shelf = self._shelf
        frames = sum(len(stream.frames) for stream in shelf.streams.values())
        return len(shelf.sessions) + len(shelf.streams) + len(shelf.requests) + frames
