"""Does the schema still fit what was released? `python wire/compatibility.py` compares it with every release.

`buf` decides, by its rules for whole files: nothing removed, renamed, renumbered or of another type or
optionality. Here it only gets two files of one name to look at. Must not know what a message means.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["RELEASES", "SCHEMA", "breaks", "find_buf", "main", "releases"]

HOME = Path(__file__).parent
SCHEMA = HOME / "seedance.proto"
RELEASES = HOME / "released"

_NONE_BROKEN, _BROKEN = 0, 100  # buf's exit statuses
_TIMEOUT_S = 60.0


def find_buf() -> str | None:
    """Returns the path of `buf` beside this interpreter or in the path, None where there is none."""
    beside = Path(sys.executable).with_name("buf")
    return str(beside) if beside.exists() else shutil.which("buf")


def releases() -> Sequence[Path]:
    """Returns the released schemas, the oldest first: ``released/VERSION/seedance.proto``."""
    found = RELEASES.glob("*/seedance.proto")
    return sorted(found, key=lambda path: [int(number) for number in path.parent.name.split(".")])


def breaks(buf: str, old: str, new: str) -> list[str]:
    """Returns what a peer of the old schema would trip over in the new one, one line each.

    Args:
        buf: Its path.
        old: The text of the old schema.
        new: The text of the new one.

    Raises:
        ValueError: One of them is no schema.
    """
    with TemporaryDirectory(prefix="seedance-schema-") as home:
        for name, text in (("old", old), ("new", new)):
            folder = Path(home, name)
            folder.mkdir()
            folder.joinpath(SCHEMA.name).write_text(text)
        done = subprocess.run(  # noqa: S603 - nothing here comes from elsewhere
            [buf, "breaking", "new", "--against", "old", "--error-format=json"],
            cwd=home,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    unread = done.returncode not in {_NONE_BROKEN, _BROKEN}
    if unread or any(each["type"] == "COMPILE" for each in found):
        raise ValueError(f"no schema: {done.stderr.strip() or done.stdout.strip()}")
    return [f"line {each.get('start_line', 1)}: {each['message']}" for each in found]


def main() -> int:
    """Compares the schema with every release; 1 where it breaks one."""
    buf = find_buf()
    if buf is None:
        print("there is no buf: pip install buf-bin", file=sys.stderr)  # noqa: T201 - a command
        return 2
    status = 0
    for release in releases():
        found = breaks(buf, release.read_text(), SCHEMA.read_text())
        verdict = "\n  ".join(["breaks it:", *found]) if found else "fits"
        print(f"{release.parent.name}: {SCHEMA.name} {verdict}")  # noqa: T201 - a command
        status = 1 if found else status
    return status


if __name__ == "__main__":
    sys.exit(main())
