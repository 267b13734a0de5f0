"""The harness that kills servers: a life ends when it is told to, and the next one has the same address."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from seedance_sdk import AsyncSeedanceClient
from tests.faults.server_process import server_process
from tests.tiny_models import build_tiny_model

pytestmark = pytest.mark.slow


async def test_server_process_is_killed_and_comes_back_on_its_port(tmp_path: Path):
    """SIGKILL ends it, a new start answers at the same URL, SIGTERM ends it well."""
    model = build_tiny_model("qwen2", tmp_path / "model")
    flags = ("--model-path", str(model), "--kv-memory", "16MiB", "--threads", "1")
    journal = ("--journal", str(tmp_path / "journal.db"))
    async with server_process(tmp_path, *flags, *journal) as server:
        for life in (1, 2):
            async with AsyncSeedanceClient(server.url) as client:
                with trio.fail_after(60):
                    answer = await client.complete(prompt="The quick", temperature=0, max_tokens=4)
            assert answer.usage.completion_tokens <= 4
            assert server.starts == life
            if life == 1:
                await server.kill()
                assert not server.is_running
                server.start()
                await server.wait_ready()
        assert await server.stop() == 0
    assert (server.kills, server.starts) == (1, 2)
    assert "Traceback" not in server.log
