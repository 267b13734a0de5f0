"""Any history of a journal: SQLite and memory answer alike, and neither ever takes a frame back.

A history is a list of commands that are played to both. They say what a caller would know (the epoch that it
holds, the frame that comes next), so most of them succeed; small numbers of everything make them meet. Beside
the two goes a ledger that only remembers what was acknowledged.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing
from attrs import Factory, define, evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from seedance_server.journal.errors import JournalError
from seedance_server.journal.interface import Journal
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.records import FrameRecord, Submission, SweepResult
from seedance_server.journal.sqlite import SqliteJournal
from seedance_server.journal.writer import FileSystem
from tests.server.journal.journal_made import (
    LIMITS,
    TOKEN_HASH,
    InlineExecutor,
    WallClock,
    frames_from,
    new_session,
    new_stream,
    running,
)

SMALL = evolve(LIMITS, tenant_bytes=1_500, early_messages=2, sweep_rows=2, max_page_frames=3, page_bytes=200)
"""Bounds that a short history meets."""
TENANTS = {"a": "acme", "b": "acme", "c": "other"}


@frozen
class Command:
    """One operation; ``late`` is by how many epochs or frames the caller is off, mostly not at all."""

    verb: str
    session: str
    number: int = 1
    size: int = 0
    late: int = 0


_OFTEN = ["create", "submit", "append", "append", "append"]
_VERBS = [
    *_OFTEN,
    *("create", "claim", "steal", "adopt", "recover", "release", "message", "submit", "other", "append"),
    *("finish", "abandon", "read", "load", "wait", "sweep", "restart"),
]
_off = st.sampled_from([0, 0, 0, 0, 1, -1])
_commands = st.builds(
    Command,
    verb=st.sampled_from(_VERBS),
    session=st.sampled_from(sorted(TENANTS)),
    number=st.integers(1, 3),
    size=st.sampled_from([0, 1, 30, 400]),
    late=_off,
)


@define
class _Ledger:
    """What was acknowledged, and what the callers believe."""

    epochs: dict[str, int] = Factory(dict)
    frames: dict[tuple[str, int], list[FrameRecord]] = Factory(dict)
    ended: set[tuple[str, int]] = Factory(set)
    started: dict[tuple[str, bytes], tuple[str, int]] = Factory(dict)

    def claimed(self, session_id: str, epoch: int) -> None:
        assert epoch > self.epochs.get(session_id, 0), "an epoch was given twice"
        self.epochs[session_id] = epoch

    def submitted(self, tenant: str, key: bytes, submission: Submission) -> None:
        stream = (submission.stream.session_id, submission.stream.stream_id)
        if submission.moved_from is not None:
            before = self.started[tenant, key]
            assert before[0] == submission.moved_from
            assert stream not in self.frames, "one number, two streams"
            self.epochs[before[0]] = self.epochs.get(before[0], 1) + 1  # whoever had it writes no more
            self.started[tenant, key] = stream
            self.frames[stream] = self.frames.pop(before, [])
            if before in self.ended:
                self.ended.remove(before)
                self.ended.add(stream)
        elif submission.replayed:
            assert self.started[tenant, key] == stream, "one key, two streams"
        else:
            assert stream not in self.frames, "one stream, two requests"
            self.started[tenant, key] = stream
            self.frames[stream] = []

    def appended(
        self, stream: tuple[str, int], epoch: int, frames: list[FrameRecord], finish: str | None
    ) -> None:
        assert epoch == self.epochs[stream[0]], "an older owner wrote"
        assert stream not in self.ended, "a frame after the last"
        assert frames[0].id == len(self.frames[stream]) + 1
        self.frames[stream] += frames
        if finish:
            self.ended.add(stream)

    def read(self, stream: tuple[str, int], after_id: int, frames: Sequence[FrameRecord]) -> None:
        expected = self.frames[stream][after_id : after_id + len(frames)]
        assert list(frames) == expected, "a frame has another content, or there is a hole"


@define
class _Pair:
    """Both journals, played alike."""

    journals: tuple[Journal, Journal]
    clock: trio.testing.MockClock
    ledger: _Ledger

    async def both(self, operation: Callable[[Journal], Any]) -> Any:
        """The outcome that both agree on: a value, or an error that is returned."""
        first, second = [await self._attempt(partial(operation, journal)) for journal in self.journals]
        if isinstance(first, Exception):
            assert (type(first), vars(first), str(first)) == (type(second), vars(second), str(second))
        else:
            assert first == second
        return first

    @staticmethod
    async def _attempt(operation: Callable[[], Any]) -> Any:
        try:
            value = await operation()
        except (JournalError, ValueError) as error:
            return error
        if isinstance(value, SweepResult):
            streams = sorted(value.abandoned, key=lambda record: (record.session_id, record.stream_id))
            return evolve(value, abandoned=tuple(streams))
        return value

    async def play(self, command: Command) -> None:
        await getattr(self, f"_{command.verb}")(command)

    def _epoch(self, command: Command) -> int:
        return self.ledger.epochs.get(command.session, 1) + command.late

    async def _create(self, command: Command) -> None:
        session = new_session(command.session, TENANTS[command.session])
        if not isinstance(await self.both(lambda journal: journal.create_session(session)), Exception):
            self.ledger.epochs[command.session] = 1
            for stream in [stream for stream in self.ledger.frames if stream[0] == command.session]:
                del self.ledger.frames[stream]  # a session of that name is new
                self.ledger.ended.discard(stream)

    async def _claim(self, command: Command) -> None:
        tenant = TENANTS[command.session]
        claimed = await self.both(lambda journal: journal.claim_session(command.session, tenant, TOKEN_HASH))
        if not isinstance(claimed, Exception):
            self.ledger.claimed(command.session, claimed.session.epoch)

    async def _steal(self, command: Command) -> None:
        stolen = await self.both(lambda journal: journal.claim_session(command.session, "thief", TOKEN_HASH))
        assert isinstance(stolen, JournalError)

    async def _adopt(self, command: Command) -> None:
        adopted = await self.both(lambda journal: journal.adopt_session(command.session))
        if not isinstance(adopted, Exception):
            self.ledger.claimed(command.session, adopted.session.epoch)

    async def _recover(self, command: Command) -> None:
        for claimed in await self.both(lambda journal: journal.recover()):
            self.ledger.claimed(claimed.session.session_id, claimed.session.epoch)

    async def _release(self, command: Command) -> None:
        epoch = self._epoch(command)
        await self.both(lambda journal: journal.release_session(command.session, epoch))

    async def _message(self, command: Command) -> None:
        epoch, id_ = self._epoch(command), command.number + command.size // 10
        await self.both(lambda journal: journal.record_message(command.session, epoch, id_))

    async def _submit(self, command: Command) -> None:
        key = b"key-%d" % (command.number + command.size)
        stream = new_stream(command.number, key, fingerprint=b"f", request=b"r" * command.size)
        epoch = self._epoch(command)
        found = await self.both(lambda journal: journal.submit(command.session, epoch, stream))
        if not isinstance(found, Exception):
            self.ledger.submitted(TENANTS[command.session], key, found)

    async def _other(self, command: Command) -> None:
        """A known key under another request, or another session's request again."""
        keys = sorted(key for tenant, key in self.ledger.started if tenant == TENANTS[command.session])
        if keys:
            key = keys[command.size % len(keys)]
            stream = new_stream(command.number, key, fingerprint=b"f" if command.late else b"other")
            epoch = self.ledger.epochs.get(command.session, 1)
            found = await self.both(lambda journal: journal.submit(command.session, epoch, stream))
            if not isinstance(found, Exception):
                self.ledger.submitted(TENANTS[command.session], key, found)

    async def _append(self, command: Command, finish: str | None = None) -> None:
        stream = (command.session, command.number)
        written = self.ledger.frames.get(stream, [])
        first_id = max(1, len(written) + 1 + (command.late if command.size == 1 else 0))
        offset = sum(frame.size for frame in written)
        frames = frames_from(first_id, offset, command.size, 1)
        epoch = self._epoch(command) if command.size != 1 else self._epoch(evolve(command, late=0))
        outcome = await self.both(
            lambda journal: journal.append(*stream[:1], epoch, stream[1], frames, finish=finish)
        )
        if not isinstance(outcome, Exception):
            self.ledger.appended(stream, epoch, frames, finish)

    async def _finish(self, command: Command) -> None:
        await self._append(command, "stop")

    async def _abandon(self, command: Command) -> None:
        epoch = self._epoch(command)
        outcome = await self.both(lambda journal: journal.abandon(command.session, epoch, command.number))
        if outcome is None:
            self.ledger.ended.add((command.session, command.number))

    async def _read(self, command: Command) -> None:
        written = len(self.ledger.frames.get((command.session, command.number), ()))
        after_id = max(0, min(command.size % 29, written) + command.late)
        page = await self.both(
            lambda journal: journal.read_frames(command.session, command.number, after_id, 5)
        )
        if not isinstance(page, Exception):
            self.ledger.read((command.session, command.number), after_id, page.frames)

    async def _load(self, command: Command) -> None:
        await self.both(lambda journal: journal.load_stream(command.session, command.number))

    async def _wait(self, command: Command) -> None:
        self.clock.jump([600.0, 3_600.0, 86_400.0][command.number - 1])

    async def _sweep(self, command: Command) -> None:
        await self.both(lambda journal: journal.sweep())


async def _play(commands: Sequence[Command], clock: trio.testing.MockClock) -> None:
    wall_clock = WallClock()
    waiting = deque(commands)
    ledger = _Ledger()
    memory = MemoryJournal(SMALL, wall_clock=wall_clock)
    with tempfile.TemporaryDirectory() as directory:
        while True:
            sqlite = SqliteJournal(
                Path(directory) / "journal.db",
                SMALL,
                wall_clock=wall_clock,
                executor=InlineExecutor(),
                files=FileSystem(synchronous="OFF"),  # what a power loss does is shown elsewhere
            )
            async with running(sqlite), running(memory):
                pair = _Pair((sqlite, memory), clock, ledger)
                while waiting and (command := waiting.popleft()).verb != "restart":
                    await pair.play(command)
                for session, number in sorted(ledger.frames):
                    await pair.play(Command("read", session, number))
            if not waiting:
                return
            wall_clock.now_s += clock.current_time() % 1_000


@settings(max_examples=60)
@given(commands=st.lists(_commands, min_size=10, max_size=60))
def test_journals_answer_alike_and_take_nothing_back(commands: list[Command]):
    """No hole, one content for an id, one stream for a key, nothing after the end, older owners fenced."""
    clock = trio.testing.MockClock()
    start = [Command(verb, session) for session in TENANTS for verb in ("create", "submit", "append")]
    trio.run(_play, start + commands, clock, clock=clock)
