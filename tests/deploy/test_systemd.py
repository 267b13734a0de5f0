"""The unit file is one that systemd takes, and it stops a server the way that the server wants."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seedance_server.config import Config
from seedance_server.shutdown import ENGINE_FAILED_STATUS

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "seedance-server.service"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """But for the program, which isn't installed here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze: apt-get install systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/seedance/bin/seedance-server", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []
    assert done.returncode == 0


def test_systemd_starts_a_server_again_whose_engine_failed() -> None:
    """The next process goes on with the answers that this one left in the journal."""
    unit = UNIT.read_text()
    assert "\nRestart=on-failure\n" in unit
    assert ENGINE_FAILED_STATUS not in map(
        int, re.findall(r"^RestartPreventExitStatus=(\d+)$", unit, re.MULTILINE)
    )


def test_systemd_is_more_patient_than_the_server() -> None:
    """A server that is killed in its drain would have had time for its streams."""
    (patience,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(patience) > Config(model_path="m").shutdown_timeout_s + 10
