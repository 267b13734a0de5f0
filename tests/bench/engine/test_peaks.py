"""What the machine can do at best."""

from __future__ import annotations

import pytest

from engine import peaks


@pytest.mark.parametrize("compiled", [True, False])
def test_machine_is_measured_with_and_without_a_compiler(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch stands in where nothing can be built; both give rates that a processor can have."""
    monkeypatch.setattr(peaks, "BUFFER_BYTES", 2**22)
    monkeypatch.setattr(peaks, "ROUNDS", 100)
    monkeypatch.setattr(peaks, "SIDE", 64)
    if not compiled:
        monkeypatch.setattr(peaks, "find_compiler", lambda: None)
    machine = peaks.measure_machine(2)
    assert machine.how in {"torch", "peaks.cpp"}
    assert compiled or machine.how == "torch"
    assert 1e7 < machine.bytes_per_s < 1e14
    assert 1e6 < machine.operations_per_s < 1e15
