"""Reports to a real server process that is killed again and again: each event has its line, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from seedance_sdk import AsyncSeedanceClient
from tests.faults.server_process import server_process
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow

KILLS = 2
EVENTS_A_LIFE = 40


async def test_every_report_has_one_line_when_the_server_is_killed_at_any_moment(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGKILL between receipt, commit, line and cursor: the client sends again, the file repeats nothing."""
    model = build_tiny_model("llama", tmp_path_factory.mktemp("model"))
    lines = tmp_path / "events.jsonl"
    arguments = (
        *("--model-path", str(model), "--threads", "1", "--kv-memory", "8MiB"),
        *("--journal", str(tmp_path / "journal.db"), "--events", str(lines), "--events-rotate", "4KiB"),
    )
    async with server_process(tmp_path, *arguments) as server, AsyncSeedanceClient(server.url) as client:
        for life in range(KILLS + 1):
            for number in range(EVENTS_A_LIFE):
                client.report("click", "x" * 20, user_id=life * EVENTS_A_LIFE + number)
                await trio.sleep(0.01)
            if life < KILLS:
                await server.kill()
                server.start()
                await server.wait_ready()
        with trio.fail_after(60):
            await client.flush_reports()
        await server.stop()
    files = await trio.to_thread.run_sync(lambda: sorted(tmp_path.glob("events.jsonl*")))
    written = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(event["user_id"] for event in written) == list(range((KILLS + 1) * EVENTS_A_LIFE))
    assert len({event["id"] for event in written}) == len(written)
    assert len(files) > 1
