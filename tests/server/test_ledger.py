"""Tests of `seedance_server.ledger`."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seedance_server.config import Config
from seedance_server.engine.sequence import SequenceOutput
from seedance_server.errors import StreamGivenUp
from seedance_server.frame_draft import Ending, Position
from seedance_server.journal.errors import JournalFull
from seedance_server.ledger import Ledger
from seedance_wire.messages import ErrorCode


class Store:
    """Holds back what is appended until it is settled."""

    def __init__(self) -> None:
        self.records, self.finish, self.waiting, self.full = [], None, [], False
        self.attempts = 1

    def append_soon(self, stream_id, frames, settled) -> None:
        self.waiting.append((frames, settled))

    def settle(self, is_written: bool) -> None:
        frames, settled = self.waiting.pop()
        self.records += frames if is_written else []
        settled(is_written)

    async def append(self, stream_id, frames, finish) -> None:
        if self.full:
            raise JournalFull(new_work=False)
        self.records += frames
        self.finish = finish

    async def note_attempt(self, stream_id) -> int:
        return self.attempts


def output(text: str, token_id: int) -> SequenceOutput:
    return SequenceOutput(id=1, text=text, token_ids=(token_id,))


class Book:
    """A ledger, and what it told."""

    def __init__(self, *, is_durable: bool = True) -> None:
        self.store, self.published, self.settled = Store(), [], 0
        self.ledger = Ledger(
            1,
            self.store,
            Config(model_path="m", journal_patience_s=1e-6),
            is_durable=is_durable,
            position=Position(),
            token_ids=(),
            unread_from=lambda: 1,
            on_published=self.published.append,
            on_settled=self.note_settled,
        )

    def note_settled(self) -> None:
        self.settled += 1

    @property
    def text(self) -> str:
        return "".join(getattr(entry.frame, "text", "") for entry in self.ledger.tail.after(0))


def test_nothing_is_public_before_it_is_durable() -> None:
    """Commit before send; position and tokens move on with the commit as well."""
    book = Book()
    book.ledger.write_soon([output("a", 1), output("b", 2)])
    assert book.ledger.is_writing
    assert (book.text, book.ledger.token_ids, book.ledger.position.next_id, book.published) == ("", [], 1, [])
    book.store.settle(True)
    assert not book.ledger.is_writing
    assert (book.text, book.ledger.token_ids, book.ledger.position.next_id) == ("ab", [1, 2], 3)
    assert (book.published, book.settled) == ([2], 1)


async def test_what_could_not_be_written_is_written_again_and_once() -> None:
    """With the same numbers, and with the tokens that had waited for text."""
    book = Book()
    book.ledger.write_soon([output("", 1)])
    assert not book.store.waiting
    book.ledger.write_soon([output("é", 2)])
    book.store.settle(False)
    assert book.ledger.has_unwritten
    assert (book.text, book.settled) == ("", 1)
    await book.ledger.write(book.ledger.take_unwritten())
    assert not book.ledger.take_unwritten()
    await book.ledger.write([output("!", 3)])
    assert (book.text, book.ledger.token_ids) == ("é!", [1, 2, 3])
    assert [(record.id, record.offset, record.token_ids) for record in book.store.records] == [
        (1, 0, (1, 2)),
        (2, 2, (3,)),
    ]


async def test_what_is_generated_again_is_not_written_twice() -> None:
    """A parked stream forgets what it had and couldn't write: those tokens come again."""
    book = Book()
    book.ledger.write_soon([output("a", 1), output("", 2)])
    book.store.settle(True)
    book.ledger.write_soon([output("b", 3)])
    book.store.settle(False)
    book.ledger.forget_outputs()
    assert not book.ledger.has_unwritten
    await book.ledger.write([output("", 2), output("b", 3)])
    assert (book.text, book.ledger.token_ids) == ("ab", [1, 2, 3])


async def test_a_failed_write_leaves_no_trace() -> None:
    """The end is written behind what is there, whatever else was to be."""
    book = Book()
    book.store.full = True
    with pytest.raises(JournalFull):
        await book.ledger.write([output("a", 1)])
    book.store.full = False
    await book.ledger.end(Ending(ErrorCode.JOURNAL_FULL, "", True), "journal_full", out_of_turn=True)
    (end,) = book.ledger.tail.after(0)
    assert (end.frame.id, end.frame.offset, end.out_of_turn) == (1, 0, True)
    assert (book.store.finish, book.ledger.tail.is_ended, book.published) == ("journal_full", True, [0])


async def test_waiting_until_it_is_settled_can_not_be_cancelled() -> None:
    """Else a stream could be left while its frames become durable, and generate them again."""
    book = Book()
    await book.ledger.settled()
    book.ledger.write_soon([output("a", 1)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(book.ledger.settled)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            book.store.settle(True)
    assert book.text == "a"


def test_without_a_journal_frames_are_public_at_once() -> None:
    """And stay where their reader hasn't got them."""
    book = Book(is_durable=False)
    book.ledger.write_soon([output("a", 1)])
    assert (book.text, book.published, book.ledger.is_writing) == ("a", [1], False)


async def test_ledger_gives_up_what_process_after_process_ended_with() -> None:
    """A request that kills whoever computes it must not kill for ever."""
    book = Book()
    for book.store.attempts in (1, 2, 3):
        await book.ledger.begin_again()
    book.store.attempts = 4
    with pytest.raises(StreamGivenUp) as caught:
        await book.ledger.begin_again()
    assert caught.value.attempts == 3
