"""The stream of made-up events, and the table of what they weigh."""

import json
from itertools import islice
from pathlib import Path

import pytest

from events import main, user_events


def test_stream_is_the_same_for_the_same_seed() -> None:
    """A figure can be measured again."""
    first, again, other = (list(islice(user_events(seed), 500)) for seed in (1, 1, 2))
    assert first == again != other
    assert [event.timestamp for event in first] == sorted(event.timestamp for event in first)
    assert len({event.user_id for event in first}) >= 4
    assert {event.action for event in first} >= {"scroll", "move", "click", "page_view"}


def test_table_shows_what_packing_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A long batch is smaller by more than five times."""
    path = tmp_path / "events.json"
    assert main(["--events", "512", "--repeats", "1", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())
    assert (shown := capsys.readouterr().out).count("\n") == 3 + len(rows)
    assert "x smaller, 12 µs, 47 µs: " in shown
    assert rows[-1]["packed_bytes"] * 5 < rows[-1]["plain_bytes"]
