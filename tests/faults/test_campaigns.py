"""The fault campaigns at a size for every run: the same code as `nox -s faults`, fewer of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from seedance_wire.codec import SUBPROTOCOLS
from tests.faults.history import ClientRecord, Fault, JournaledFrame, Piece, check_histories
from tests.faults.kill_campaign import CLIENTS, STREAMS_PER_CLIENT, kill_campaign
from tests.faults.offset_campaign import exchange_size, offset_campaign
from tests.faults.simulated_campaign import simulated_campaign
from tests.faults.tally import Tally, table


@pytest.mark.slow
@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_every_byte_may_be_the_last_that_passes(subprotocol: str):
    """Wherever an exchange is cut, in either direction, the application reads the same text."""
    every = 1 if subprotocol == "seedance.v1" else 7
    tally = offset_campaign(subprotocols=(subprotocol,), every=every)
    assert tally.sound, table([tally]) + str((tally.verdict.findings, tally.wrong))
    assert tally.faults > 2 * sum(exchange_size(subprotocol)) / every


@pytest.mark.slow
@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_whole_stack_loses_and_repeats_nothing_under_faults(subprotocol: str):
    """Cuts, refusals, delays, half-closes and kills, until they stop: every stream is whole."""
    tally = simulated_campaign(200, seed=11, subprotocol=subprotocol)
    assert tally.sound, table([tally]) + str((tally.verdict.findings, tally.wrong))
    assert tally.kills
    assert tally.streams > 10


@pytest.mark.slow
async def test_killed_process_loses_and_repeats_nothing(tmp_path: Path):
    """SIGKILL with eight live streams, restart, and again: clients notice nothing but a pause."""
    tally = await kill_campaign(tmp_path, 3)
    assert tally.sound, table([tally]) + str((tally.verdict.findings, tally.wrong))
    assert tally.kills == 3
    assert len(tally.resumes_s) >= 2 * CLIENTS * STREAMS_PER_CLIENT


def test_table_counts_lost_and_repeated_bytes():
    """What went wrong stands in the table, in bytes, and a campaign with a finding is not sound."""
    frames = [JournaledFrame(1, 0, "ab"), JournaledFrame(2, 2, "cde"), JournaledFrame(3, 5, "", is_last=True)]
    record = ClientRecord([Piece(1, 0, "ab"), Piece(1, 0, "ab")], ends=1)
    verdict = check_histories({"s": record}, {"s": frames})
    tally = Tally(
        name="a test", faults=1_234, kills=0, streams=1, verdict=verdict, resumes_s=[0.25, 0.5, 3.0]
    )
    assert not tally.sound
    assert (verdict.bytes_of(Fault.LOST), verdict.bytes_of(Fault.DUPLICATED)) == (3, 2)
    row = table([tally]).splitlines()[-1].split()
    assert row == ["a", "test", "1,234", "0", "1", "4", "3", "2", "1", "-", "-", "0.500", "s", "3.000", "s"]
