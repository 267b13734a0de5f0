"""Tests of `seedance_server.event_file`."""

import json
from pathlib import Path

import pytest
import trio

from seedance_server.event_file import EventFile
from seedance_server.event_sink import ReportedEvent


def event(number: int, payload: bytes = b"\x00\xff") -> ReportedEvent:
    """An event whose id ends in this number."""
    return ReportedEvent(
        id=f"s:{number}:0",
        tenant="acme",
        session_id="s",
        received_ms=5,
        timestamp=4,
        user_id=-1,
        action="größer",
        payload=payload,
    )


class Feed:
    """Gives pages, one after the other; fails at its end, or at a commit if it is to."""

    def __init__(self, *pages: list[int], fail_at_commit: int = 99) -> None:
        self.pages = [tuple(map(event, page)) for page in pages]
        self.commits = 0
        self.fail_at_commit = fail_at_commit

    async def take(self) -> tuple[ReportedEvent, ...]:
        await trio.lowlevel.checkpoint()
        return self.pages.pop(0)  # the last one raises IndexError

    async def commit(self) -> None:
        self.commits += 1
        if self.commits == self.fail_at_commit:
            raise OSError


def run(path: Path, *pages: list[int], rotate_bytes: int = 1 << 20, fail_at_commit: int = 99) -> None:
    """Runs the file until its feed ends or fails."""
    feed = Feed(*pages, fail_at_commit=fail_at_commit)
    with pytest.raises((IndexError, OSError)):
        trio.run(EventFile(path, rotate_bytes).run, feed)


def ids(*paths: Path) -> list[int]:
    """The numbers in files, line by line."""
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [int(json.loads(line)["id"].split(":")[1]) for line in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_file_has_a_line_for_each_event(path: Path) -> None:
    """All that is known of it, in words that any reader of JSON knows; for its owner's eyes only."""
    run(path, [1, 2], [3])
    assert ids(path) == [1, 2, 3]
    assert json.loads(path.read_text().splitlines()[0]) == {
        "id": "s:1:0",
        "tenant": "acme",
        "session": "s",
        "received": 5,
        "timestamp": 4,
        "user_id": -1,
        "action": "größer",
        "payload": "00ff",
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_event_that_comes_again_has_its_line_once(path: Path) -> None:
    """The process died between the line and the commit; a page may then hold more than it did."""
    run(path, [1, 2], [3, 4], fail_at_commit=2)
    run(path, [3, 4, 5], [6])
    assert ids(path) == [1, 2, 3, 4, 5, 6]


def test_half_a_line_is_cut_off_and_written_whole(path: Path) -> None:
    """The process died within a write: at every byte of the line."""
    run(path, [1], [2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        run(path, [2], [3])
        assert ids(path) == [1, 2, 3]


def test_file_of_another_journal_swallows_nothing(path: Path) -> None:
    """Its last id isn't among what comes, so all of it is new."""
    run(path, [9])
    run(path, [1, 2])
    assert ids(path) == [9, 1, 2]


def test_file_is_put_aside_when_it_is_full_and_never_deleted(path: Path) -> None:
    """Numbers rise for ever, also over restarts; a death right after the rotation repeats nothing."""
    run(path, [1], [2], [3], rotate_bytes=1)
    first, second = path.with_name("events.jsonl.1"), path.with_name("events.jsonl.2")
    assert (ids(first), ids(second), ids(path)) == ([1], [2], [3])
    path.rename(path.with_name("events.jsonl.10"))
    run(path, [3, 4], [5], rotate_bytes=1)
    assert ids(path.with_name("events.jsonl.11"), path) == [4, 5]
