"""What the container file copies and starts is there; building it needs a registry, which tests have not."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Containerfile").read_text()


def test_containerfile_copies_what_there_is() -> None:
    """Everything that a wheel is made of, and nothing that was moved."""
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", TEXT, re.MULTILINE) for name in line.split()]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {"wire", "seedance_server", "pyproject.toml", "setup.py"} <= set(copied)


def test_containerfile_starts_the_server_and_stops_it_by_its_signal() -> None:
    """The command is the one that the wheel brings."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (started,) = re.findall(r'^ENTRYPOINT \["/opt/seedance/bin/(\S+)"\]$', TEXT, re.MULTILINE)
    assert started in scripts
    assert "\nSTOPSIGNAL SIGTERM\n" in TEXT
    assert re.search(r"^USER \d+$", TEXT, re.MULTILINE), "never root"
