"""The table of processor time by thread, and how that time is read."""

import json
import os
import threading
from pathlib import Path

import pytest

import loop


def level(durability: str, us: float) -> dict[str, object]:
    return {"streams": 32, "durability": durability, "us_a_token": dict.fromkeys(loop.THREADS.values(), us)}


RECORD = {
    "taken_at": "2026-01-01T00:00:00+00:00",
    "step_ms": 25.0,
    "pieces": 200,
    "levels": [level("committed", 90), level("none", 50), level("committed", 100), level("committed", 140)],
}


def test_table_tells_the_median_of_the_rounds_and_how_far_they_lie_apart() -> None:
    """A line for each level; one odd round must not decide."""
    _, _, committed, none = loop.table(RECORD).splitlines()
    assert "committed" in committed
    assert committed.count("100 (90..140)") == len(loop.THREADS)
    assert none.count("50 (50..50)") == len(loop.THREADS)


def test_benchmark_writes_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All figures are kept, whoever wants to compare them later."""
    monkeypatch.setattr(loop, "run", lambda *_: RECORD)
    monkeypatch.setattr(loop, "stop_like_ctrl_c_on_sigterm", lambda: None)
    assert loop.main(["--results", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("loop-*.json")
    assert json.loads(written.read_text()) == RECORD


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux tells")
def test_time_is_read_by_the_names_of_threads() -> None:
    """The first thread of a process is the server's event loop; the others are known by their names."""
    done = threading.Event()
    named = threading.Event()

    def work() -> None:
        Path("/proc/thread-self/comm").write_text("seedance-journal")
        sum(range(100_000))
        named.set()
        done.wait(5)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert named.wait(5)
        times = loop.thread_times(os.getpid())
    finally:
        done.set()
        thread.join()
    assert times["seedance-journa"] > 0
    assert min(times["loop"], times["client"]) > 0
