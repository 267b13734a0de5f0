"""What journal tests are made of: limits without waits, an executor without a thread, sessions and frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define

from seedance_server.journal.interface import Journal
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.records import FrameRecord, NewEventBatch, NewSession, NewStream

__all__ = [
    "LIMITS",
    "TOKEN_HASH",
    "InlineExecutor",
    "MakeJournal",
    "WallClock",
    "frames_from",
    "new_batch",
    "new_session",
    "new_stream",
    "running",
]

LIMITS = JournalLimits(commit_interval_s=0, sweep_interval_s=1e9, soft_free_bytes=0, ballast_bytes=0)
"""Nothing waits for company or runs by itself, and the disk of the machine has no say."""
TOKEN_HASH = bytes(range(32))

MakeJournal = Callable[[JournalLimits], Journal]
"""Gives a journal on one storage, the same at each call."""


class InlineExecutor:
    """Runs functions where they are asked for, so that a mocked clock sees no thread."""

    async def call(self, function: Callable[[], Any], *, abandon_on_cancel: bool = False) -> Any:
        await trio.lowlevel.checkpoint()
        return function()


@define
class WallClock:
    """A wall clock to be set."""

    now_s: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def running(journal: Journal) -> AsyncIterator[Journal]:
    """``journal`` in service."""
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        yield journal
        nursery.cancel_scope.cancel()


def new_session(session_id: str = "s", tenant: str = "acme", token_hash: bytes = TOKEN_HASH) -> NewSession:
    return NewSession(session_id=session_id, tenant=tenant, token_hash=token_hash)


def new_stream(sequence_id: int = 1, key: bytes | None = None, **changes: Any) -> NewStream:
    """A request; its key follows from its sequence id unless given."""
    values: dict[str, Any] = {
        "sequence_id": sequence_id,
        "idempotency_key": b"key-%d" % sequence_id if key is None else key,
        "fingerprint": b"fingerprint",
        "request": b"request",
        "model_fingerprint": b"model",
        "prompt_ids": (1, 2, 70_000),
        "seed": -7,
    }
    return NewStream(**{**values, **changes})


def frames_from(first_id: int, offset: int, *sizes: int) -> list[FrameRecord]:
    """Frames from ``first_id`` and ``offset`` on, one for each size of text; each stands for its own ids."""
    frames = []
    for frame_id, size in enumerate(sizes, first_id):
        frames.append(
            FrameRecord(
                id=frame_id,
                kind=1,
                offset=offset,
                size=size,
                payload=b"%d" % frame_id * max(size, 1),
                token_ids=(frame_id, frame_id + 1_000),
            )
        )
        offset += size
    return frames


def new_batch(number: int, payload: bytes = b"events", *, sequence_id: int | None = None) -> NewEventBatch:
    """Reported events; their message has the same number unless given."""
    return NewEventBatch(
        sequence_id=number if sequence_id is None else sequence_id, batch_id=number, payload=payload
    )
