"""Tests of `seedance_sdk.cli.__main__`."""

import subprocess
import sys
from importlib.metadata import version


def test_module_runs_as_the_command() -> None:
    """Where the script is not on the path."""
    command = [sys.executable, "-m", "seedance_sdk.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"seedance {version('seedance-sdk')}\n"
