"""A server whose journal's disk fills up: no new work, but who has something here comes back for it."""

from pathlib import Path

import pytest
import trio

from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.sqlite import SqliteJournal
from seedance_server.journal.writer import FileSystem
from seedance_server.testing import ScriptedEngine, serve_in_memory
from seedance_wire.messages import ErrorCode, Resumed
from tests.server.http.probe import Client
from tests.server.wire_client import wire_client

pytestmark = pytest.mark.slow


async def test_full_disk_turns_readiness_red_and_lets_clients_come_back(tmp_path: Path) -> None:
    """Whoever was cut has the rest of its stream; a new request is refused; room found again is noticed."""
    free = [1 << 40]
    limits = JournalLimits(sweep_interval_s=0.05, free_check_s=0.02)
    files = FileSystem(free_bytes=lambda _: free[0])
    journal = SqliteJournal(tmp_path / "journal.db", limits, files=files)
    async with serve_in_memory(ScriptedEngine(["x"] * 40), journal=journal, step_s=0.01) as server:

        async def readiness_of(status: int) -> str:
            """Waits for this status; the disk is looked at now and then."""
            with trio.fail_after(5):
                while True:
                    answer = await Client(server.connect()).ask("GET", "/readyz")
                    if answer.status == status:
                        return answer.body.decode()

        async with wire_client(server.connect()) as client:
            await client.submit()
            stream_id = await client.accepted()
            taken, former = await client.frames(5), client.welcome
        free[0] = 1000
        assert "room: the journal's disk is nearly full: 1000 bytes are free" in await readiness_of(503)
        async with wire_client(server.connect(), former=former) as client:
            assert isinstance(await client.resume(stream_id, taken), Resumed)
            assert len(taken + await client.frames()) == 41
            await client.submit()
            assert (await client.refused()).code is ErrorCode.JOURNAL_FULL
        free[0] = 1 << 40
        assert await readiness_of(200) == "ok\n"
