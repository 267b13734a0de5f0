"""What one stream has come to: outputs become numbered frames, frames become durable, durable ones public.

Commit before send: a frame is in the tail only after the append that holds it has returned. Numbering, digest
and token ids move on with that, so what couldn't be written leaves no trace and can be drafted again. One
append is under way at a time.

It must not know engines, readers or why a stream ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
import trio
from attrs import evolve

from seedance_server.config import Config
from seedance_server.engine.sequence import SequenceOutput
from seedance_server.errors import StreamGivenUp
from seedance_server.frame_draft import (
    Draft,
    Ending,
    Position,
    draft_ending,
    draft_frames,
    frame_records,
)
from seedance_server.frame_store import FrameStore, append_patiently
from seedance_server.tail import FrameTail
from seedance_wire.messages import Final

__all__ = ["Ledger"]

_log = structlog.get_logger(__name__)


class Ledger:
    """Of one stream.

    Args:
        stream_id: Its number in the session.
        store: Where frames become durable.
        config: Limits.
        is_durable: Whether frames are journaled; else they are public at once.
        position: Where its frames go on.
        token_ids: The tokens of its frames so far.
        unread_from: Asked which frame some reader wasn't sent yet, where there is no journal behind.
        on_published: Called when frames have become public, with how many tokens.
        on_settled: Called when `write_soon` has come to its end, either way.

    Attributes:
        tail: The newest frames.
        position: How far it has come.
        token_ids: The tokens of its frames so far.
    """

    def __init__(
        self,
        stream_id: int,
        store: FrameStore,
        config: Config,
        *,
        is_durable: bool,
        position: Position,
        token_ids: Sequence[int],
        unread_from: Callable[[], int | None],
        on_published: Callable[[int], None],
        on_settled: Callable[[], None],
    ) -> None:
        self.position = position
        self.token_ids = list(token_ids)
        self.tail = FrameTail(position.next_id - 1, config.tail_bytes)
        self._stream_id = stream_id
        self._store = store
        self._config = config
        self._is_durable = is_durable
        self._unread_from = unread_from
        self._on_published = on_published
        self._on_settled = on_settled
        self._held: tuple[SequenceOutput, ...] = ()
        self._under_way: tuple[Draft, Sequence[SequenceOutput]] | None = None
        self._unwritten: Sequence[SequenceOutput] = ()
        self._settling = trio.lowlevel.ParkingLot()

    @property
    def is_writing(self) -> bool:
        """Whether an append of `write_soon` is under way."""
        return self._under_way is not None

    @property
    def has_unwritten(self) -> bool:
        """Whether `write_soon` failed."""
        return bool(self._unwritten)

    def take_unwritten(self) -> Sequence[SequenceOutput]:
        """The outputs that `write_soon` couldn't write, once; for `write`, before anything else."""
        outputs, self._unwritten = self._unwritten, ()
        return outputs

    async def begin_again(self) -> None:
        """Notes that this process goes on with what another one left, before it does; once (`suspects.py`).

        Raises:
            StreamGivenUp: Too many have ended at this place, however: it may be what ends them.
            SessionLost: As from the store.
        """
        attempts = await self._store.note_attempt(self._stream_id)
        if attempts > self._config.max_attempts:
            _log.warning("stream given up", attempts=attempts - 1, frames=self.position.next_id - 1)
            raise StreamGivenUp(attempts - 1)

    def write_soon(self, outputs: Sequence[SequenceOutput]) -> None:
        """Makes frames of outputs and has them written, in a plain call; nothing may be under way.

        Raises:
            LocalProtocolError: A frame holds what the protocol can't carry.
        """
        draft = self._draft(outputs)
        if not draft.frames:
            self._held = draft.held
        elif not self._is_durable:
            self._publish(draft)
        else:
            records = frame_records(draft)
            self._under_way = draft, outputs
            self._store.append_soon(self._stream_id, records, self._settle)

    def _settle(self, is_written: bool) -> None:
        assert self._under_way is not None, "settled twice"  # noqa: S101
        draft, outputs = self._under_way
        self._under_way = None
        if self._settling:
            self._settling.unpark_all()
        if is_written:
            self._publish(draft)
        else:
            self._unwritten = outputs
        self._on_settled()

    async def settled(self) -> None:
        """Waits until nothing is under way, whether that is cancelled or not."""
        while self._under_way is not None:
            with trio.CancelScope(shield=True):
                await self._settling.park()

    async def write(self, outputs: Sequence[SequenceOutput]) -> None:
        """Makes outputs durable and public, with patience; nothing may be under way.

        Raises:
            SessionLost, JournalFull, JournalOverloaded: As from `append_patiently`.
            LocalProtocolError: As from `write_soon`.

        If cancelled, either nothing of this has happened or all.
        """
        draft = self._draft(outputs)
        if draft.frames:
            await self._write(draft, None)
        else:
            self._held = draft.held

    def forget_outputs(self) -> None:
        """What is no part of the stream yet is generated again, or of no use; nothing may be under way."""
        self._held = self._unwritten = ()

    async def end(self, ending: Final | Ending, finish: str, *, out_of_turn: bool) -> None:
        """Makes the terminal frame durable and public; see `write`.

        Args:
            ending: How it ended; the digest of the text is filled in here.
            finish: The same in a word.
            out_of_turn: It may pass a full window.
        """
        position, held = self.position, self._held
        if isinstance(ending, Final):
            ending = evolve(ending, digest=position.digest.digest())
        draft = draft_ending(self._stream_id, position, ending, held, out_of_turn=out_of_turn)
        await self._write(draft, finish)

    def _draft(self, outputs: Sequence[SequenceOutput]) -> Draft:
        return draft_frames(
            self._stream_id,
            self.position,
            (*self._held, *outputs),
            segment_bytes=self._config.segment_bytes,
            held_bytes=self._config.held_bytes,
        )

    async def _write(self, draft: Draft, finish: str | None) -> None:
        if self._is_durable:
            await append_patiently(
                self._store,
                self._stream_id,
                frame_records(draft),
                finish,
                patience_s=self._config.journal_patience_s,
            )
        # No checkpoint from here on: the journal has it, so the stream has it.
        self._publish(draft)

    def _publish(self, draft: Draft) -> None:
        self.position = draft.position
        self._held = draft.held
        known = len(self.token_ids)
        for ids in draft.token_ids:
            self.token_ids += ids
        self.tail.publish(draft.frames, unread_from=None if self._is_durable else self._unread_from())
        self._on_published(len(self.token_ids) - known)
