"""No file outgrows what one person reads in one sitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT, sources

MOST_LINES = 400
FOLDERS = ("bench", "fuzz", "tests")


def _python_files() -> list[Path]:
    scripts = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [source.path for source in sources()] + scripts + [ROOT / "noxfile.py"]


@pytest.mark.parametrize("path", _python_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_file_is_short_enough(path: Path):
    """A file is one noun of the field; one that needs more lines holds two."""
    assert len(path.read_text().splitlines()) <= MOST_LINES
