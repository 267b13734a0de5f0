"""One generation on its way into the journal: outputs of the engine in, durable frames out.

What isn't committed is no part of the stream (`ledger.py`), so it can be left at any moment and go on from
the journal, here or in another process, as if it hadn't been. Its task is for what has to wait or to be
decided: while that rests outputs pass in plain calls, since a wake-up for each token costs more than them.

It runs at the pace of its quickest reader (`pace.py`): with no room in any window it stands, and the engine
leaves it out from the next step on. Standing too long it gives its KV memory up and generates on later
(parked); with no reader at all for a while it leaves memory altogether. A stream ended from outside (cancel,
deadline, shutdown) drops what wasn't committed and says so in its terminal frame.

It must not know sockets, sessions or other streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio

from seedance_server.admission import Admission
from seedance_server.config import Config
from seedance_server.endings import ending_of, record_of
from seedance_server.engine.sequence import Finish
from seedance_server.engine_loop import Generation
from seedance_server.errors import EngineStopped, SessionLost
from seedance_server.frame_draft import Ending, Position, cancelled_final, final_of
from seedance_server.frame_store import FrameStore
from seedance_server.ledger import Ledger
from seedance_server.pace import Pace, Reader
from seedance_server.prepared import Prepared
from seedance_server.request_watch import RequestWatch, Stage
from seedance_server.suspects import Trial
from seedance_server.turn import Turn
from seedance_wire.messages import ErrorCode, Final, FlowAction

__all__ = ["Stream"]

_AT_ONCE = 16
"""Outputs that become one append: more than a buffer holds, since only a reader's window is to limit them."""
_FIRST_WRITE_S = 1.0
"""How long the end of a stream waits to learn when its first frame left; only a figure needs it."""


class Stream:
    """Produces one stream.

    Args:
        stream_id: Its number in the session.
        prepared: What to generate from.
        admission: Starts generations.
        store: Where frames become durable; None for a stream without durability, which abandons it in the
            end.
        config: Limits.
        watch: Whoever watches the request.
        is_durable: Whether frames are journaled.
        cancel_on_disconnect: Whether the connection's end is the stream's.
        deadline_s: Trio time after which the answer is of no use.
        position: Where its frames go on.
        token_ids: The tokens of its frames so far.
        delivered_text: Their text, to be compared with what the engine makes of the tokens.
        attempts: Processes that stood at its next frame.

    Attributes:
        tail: Its newest frames.
        over: Set when it has left memory, ended or not.
    """

    def __init__(
        self,
        stream_id: int,
        prepared: Prepared,
        *,
        admission: Admission,
        store: FrameStore,
        config: Config,
        watch: RequestWatch,
        is_durable: bool,
        cancel_on_disconnect: bool,
        deadline_s: float,
        position: Position | None = None,
        token_ids: Sequence[int] = (),
        delivered_text: str | None = None,
        attempts: int = 0,
    ) -> None:
        self.id = stream_id
        self.is_durable = is_durable
        self.cancel_on_disconnect = cancel_on_disconnect
        self.over = trio.Event()
        self._prepared = prepared
        self._admission = admission
        self._store = store
        self._config = config
        self._watch = watch
        self._deadline_s = deadline_s
        self._delivered_text = delivered_text
        self._ledger = Ledger(
            stream_id,
            store,
            config,
            is_durable=is_durable,
            position=position or Position(),
            token_ids=token_ids,
            unread_from=lambda: self._pace.unread_from,
            on_published=self._note_published,
            on_settled=self._pass_on,
        )
        self.tail = self._ledger.tail
        self._pace = Pace(self.tail, ahead=config.run_ahead_frames if is_durable else 0)
        self._generation: Generation | None = None
        self._turn = Turn(
            stream_id,
            prepared,
            admission,
            has_begun=position is not None,
            timeout_s=config.queue_timeout_s,
            is_resting=lambda: self._generation is not None and self._generation.is_paused,
            tell=self._pace.tell,
        )
        found_at = None if position is None else position.next_id
        key = prepared.session, stream_id
        self._trial = Trial(admission.suspects, key, found_at, attempts, self.note_progress)
        self._cancelled = False
        self._failure: Ending | None = None
        self._orphaned_s = trio.current_time()
        self._grace_s = config.orphan_grace_s
        self._changed = trio.lowlevel.ParkingLot()
        self._rested = trio.lowlevel.ParkingLot()
        self._is_resting = False
        self._trouble: Exception | None = None  # of a plain call, for the task to end with
        self._patience = trio.CancelScope()
        self._running = trio.CancelScope()
        self._first_written = trio.Event()

    @property
    def is_parked(self) -> bool:
        """Whether no generation is in the engine for it just now."""
        return self._generation is None

    @property
    def readers(self) -> int:
        """Connections that read it."""
        return self._pace.readers

    @property
    def has_begun(self) -> bool:
        """Whether it ever had its turn in the engine."""
        return self._turn.has_begun

    @property
    def completion_tokens(self) -> int:
        """Tokens of its frames so far."""
        return len(self._ledger.token_ids)

    # ---- told by connections: never waits

    def add_reader(self, reader: Reader) -> None:
        """From now on this reader sets the pace too."""
        self._pace.add(reader)
        self._turn.note_reader()
        self._grace_s = self._config.orphan_grace_s
        self.note_progress()

    def remove_reader(self, reader: Reader) -> None:
        """It reads no more; with the last one the grace begins. Safe to repeat."""
        self._pace.remove(reader)
        if not self.readers:
            self._orphaned_s = trio.current_time()
            self._first_written.set()
        self.note_progress()

    def forgo_grace(self) -> None:
        """Nobody knows of it: without a reader it leaves memory at once, and waits in the journal."""
        self._grace_s = 0.0
        self.note_progress()

    def note_progress(self) -> None:
        """A window moved, or something else that may let it go on."""
        self._steer()
        self._set_patience()
        self._changed.unpark_all()
        self._turn.note_change()
        self._pass_on()

    def _set_patience(self) -> None:
        if (deadline_s := self._park_at_s()) != self._patience.deadline:  # to set it takes longer than to ask
            self._patience.deadline = deadline_s

    def _steer(self) -> None:
        """Tells the engine at once what the windows have come to."""
        if self._is_ending or self.tail.is_ended:
            return
        now_s, held_since_s = trio.current_time(), self._pace.held_since_s
        if (action := self._pace.update(now_s)) is None:
            return
        self._watch.flow(action, None if held_since_s is None else now_s - held_since_s)
        self._set_patience()
        if self._generation is not None:
            self._generation.throttle(self._pace.action is FlowAction.THROTTLE)
            self._generation.hold(self._pace.action is FlowAction.PAUSE)
            if self._pace.action is FlowAction.PAUSE:
                self._turn.note_resting()

    def note_first_written(self) -> None:
        """The stream's first frame has left for a socket."""
        self._watch.reach(Stage.FIRST_WRITTEN)
        self._first_written.set()

    def cancel(self) -> None:
        """The client doesn't want the rest; ends with reason ``cancelled``. Safe to repeat."""
        self._cancelled = True
        self._end()

    def fail(self, code: ErrorCode, message: str, *, retryable: bool = True) -> None:
        """The server can't go on with it; ends with an ERROR."""
        self._failure = self._failure or Ending(code, message, retryable)
        self._end()

    def stop(self) -> None:
        """Leaves it as it is in the journal, without an end."""
        self._running.cancel()

    def _end(self) -> None:
        if self._generation is not None:
            self._generation.cancel()
        self._first_written.set()
        self.note_progress()

    @property
    def _is_ending(self) -> bool:
        return self._cancelled or self._failure is not None

    # ---- its own task

    async def run(self) -> None:
        """Produces until the terminal frame is durable, or until the stream has to leave memory before.

        Raises:
            JournalFull, JournalOverloaded: Not even the end could be written; what is written stays.
        """
        try:
            with suppress(SessionLost), self._running:
                if (ending := await self._produce()) is not None:
                    await self._finish(ending)
        finally:
            self._trial.leave(None if self.tail.is_ended else self._ledger.position.next_id)
            self._watch.park()  # unless it has ended
            self.over.set()

    async def _produce(self) -> Final | Ending | None:
        """Generates; returns how it ended, if it did. Nothing that goes wrong in here is anybody else's."""
        try:
            with trio.CancelScope(deadline=self._deadline_s):
                return await self._generate()
            return Ending(ErrorCode.DEADLINE_EXCEEDED, "the request's deadline passed", retryable=False)
        except SessionLost:
            raise
        except EngineStopped as error:
            if self._is_ending:
                return self._ended_from_outside()
            return None if self.is_durable else ending_of(error)  # the next process goes on with it
        except Exception as error:  # noqa: BLE001 - contained: it is this stream's end and no other's
            return ending_of(error)

    async def _generate(self) -> Final | Ending | None:
        while not self._is_ending:
            if not self.readers and trio.current_time() >= self._park_at_s():
                return None  # no checkpoint from here until it is out of memory
            if self._pace.action is FlowAction.PAUSE:
                self._trial.step_aside()
                await self._changed.park()
                continue
            if not self._trial.may_begin():
                with trio.CancelScope(deadline=self._park_at_s()) as self._patience:
                    await self._changed.park()
                continue
            with self._turn.in_line(self.completion_tokens):
                if not await self._turn.wait(self._wants_turn_until_s):
                    continue
                if not self._admission.has_failed and self._trial.begin():
                    await self._ledger.begin_again()
                    continue  # meanwhile all that was asked above may have another answer
                if self._watch.reach(Stage.TURN):
                    self._admission.note_tokens(self._prepared.tenant, prompt=len(self._prepared.prompt_ids))
                text, self._delivered_text = self._delivered_text, None
                with self._admission.start(self._prepared, self._ledger.token_ids, text) as generation:
                    self._generation = generation
                    generation.heard_by(self._pass_on)
                    generation.throttle(self._pace.action is FlowAction.THROTTLE)
                    try:
                        finish = await self._relay(generation)
                    finally:
                        self._generation = None
            if finish is not None:
                if finish.error is not None and not self._is_ending:
                    return ending_of(finish.error)
                return self._failure or await self._final(finish)
            self._trial.step_aside()
            self._ledger.forget_outputs()  # parked: they are generated again
        return self._ended_from_outside()

    def _ended_from_outside(self) -> Final | Ending:
        return self._failure or cancelled_final(len(self._prepared.prompt_ids), self.completion_tokens)

    async def _relay(self, generation: Generation) -> Finish | None:
        """Commits what comes; None if it was parked on the way."""
        with trio.CancelScope(deadline=self._park_at_s()) as self._patience:
            while True:
                await self._rest()
                if (unwritten := self._ledger.take_unwritten()) and not self._is_ending:
                    await self._ledger.write(unwritten)
                    continue
                while self._credit() <= 0:
                    await self._changed.park()
                outputs = [await generation.receive()]
                outputs += generation.take(min(self._credit(), _AT_ONCE) - 1)
                self._turn.note_started()
                self._watch.note_outputs(outputs)
                if not self._is_ending:
                    await self._ledger.write(outputs)
                if outputs[-1].finish is not None:
                    return outputs[-1].finish
        return None

    async def _rest(self) -> None:
        """Lets outputs pass in plain calls, until there is something for the task."""
        self._is_resting = True
        try:
            self._pass_on()
            while self._is_resting:
                await self._rested.park()
        finally:
            self._is_resting = False
            await self._ledger.settled()
        if self._trouble is not None:
            raise self._trouble

    def _pass_on(self) -> None:
        """Makes frames of what has come while the task rests; wakes it for all that isn't as usual."""
        generation, ledger = self._generation, self._ledger
        try:
            while self._is_resting and generation is not None and not ledger.is_writing:
                if generation.is_over or ledger.has_unwritten or self._is_ending:
                    self._wake_up()
                elif generation.buffered and (credit := self._credit()) > 0:
                    outputs = generation.take(min(credit, _AT_ONCE))
                    self._turn.note_started()
                    self._watch.note_outputs(outputs)
                    ledger.write_soon(outputs)
                else:
                    return
        except Exception as error:  # noqa: BLE001 - contained: it is this stream's, whoever called
            self._trouble = error
            self._wake_up()

    def _wake_up(self) -> None:
        self._is_resting = False
        self._rested.unpark_all()

    def _park_at_s(self) -> float:
        if self._is_ending:
            return float("inf")
        if not self.readers:
            return self._orphaned_s + self._grace_s
        if self._pace.held_since_s is not None:
            return self._pace.held_since_s + self._config.pause_park_s
        return float("inf")

    def _wants_turn_until_s(self) -> float:
        return float("-inf") if self._is_ending else self._park_at_s()

    def _credit(self) -> int:
        """Frames that may be made now: what the quickest reader has room for beyond what it wasn't sent."""
        return _AT_ONCE if self._is_ending or not self.readers else self._pace.credit()

    def _note_published(self, tokens: int) -> None:
        self._trial.end()
        self._admission.note_tokens(self._prepared.tenant, generated=tokens)
        self._steer()

    async def _finish(self, ending: Final | Ending) -> None:
        # Only what was ended from outside may pass a full window; a failure of its own is as good as that.
        out_of_turn = self._is_ending or isinstance(ending, Ending)
        word, outcome, code = record_of(ending)
        if isinstance(ending, Final):
            self._watch.usage = ending.usage
        if self._is_ending:
            self._ledger.forget_outputs()
        await self._ledger.end(ending, word, out_of_turn=out_of_turn)
        self._watch.end(outcome, code)
        if not self.is_durable:
            await self._store.abandon(self.id)

    async def _final(self, finish: Finish) -> Final:
        if self.tail.last_id and self.readers:
            with trio.move_on_after(_FIRST_WRITE_S):
                await self._first_written.wait()
        watch = self._watch
        return final_of(finish, was_cancelled=self._cancelled, timing=watch.timing, egress_s=watch.egress_s)
