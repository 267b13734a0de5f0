"""The table of how long a start takes, and what it holds."""

import json

import pytest

from startup import Start, pss_bytes, read_stages, render


def _line(stage: str, seconds: float) -> str:
    return json.dumps({"event": "stage of the start", "stage": stage, "seconds": seconds, "level": "debug"})


def test_stages_are_read_from_the_server_s_own_log() -> None:
    """Words for people and other events are passed over; a stage that comes twice counts as one."""
    log = ["seedance-server: packing", _line("importing", 3.0), _line("packing", 0.5), '{"event": "ready"}']
    assert read_stages([*log, _line("packing", 0.25)]) == {"importing": 3.0, "packing": 0.75}
    steps = [_line(f"8 rows take {times} times as long", 0.5) for times in ("1.21", "1.18")]
    assert read_stages(steps) == {"8 rows take … times as long": 1.0}


def test_share_of_pages_is_read_in_bytes() -> None:
    """As Linux tells it, in kB."""
    assert pss_bytes("1000-2000 [rollup]\nRss:  99 kB\nPss:   12 kB\nPss_File:  3 kB\n") == 12 * 1024


def test_table_counts_from_the_end_of_the_imports_and_the_model_s_part_alone() -> None:
    """Both are what a model costs; the libraries under it are said apart."""
    runs = [Start({"importing": 9.0, "packing": seconds}, 700_000_000) for seconds in (1.0, 3.0, 2.0)]
    assert runs[0].after_imports_s == pytest.approx(1.0)
    table = render({"native": runs}, weights_bytes=400_000_000, bare_bytes=200_000_000)
    assert "| packing | 2.00 | 1.00 | 3.00 |" in table
    assert "| **after the imports** | 2.00 | 1.00 | 3.00 |" in table
    assert "| native | 700 | 200 | 500 | 17 | 400 | 1.21 |" in table
