import pytest
import torch

from seedance_server.engine.memory import available_memory

CPU = torch.device("cpu")


def test_available_memory_is_what_the_control_group_leaves(tmp_path):
    """In a container the limit counts, not the host's memory."""
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available_memory(CPU, cgroup=tmp_path) == 600000


def test_available_memory_is_never_negative(tmp_path):
    """A control group over its limit has nothing left."""
    (tmp_path / "memory.max").write_text("1\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available_memory(CPU, cgroup=tmp_path) == 0


@pytest.mark.parametrize("limit", ["max\n", None])
def test_available_memory_is_the_machine_s_when_there_is_no_limit(tmp_path, limit):
    """No control group, or one without a limit, changes nothing."""
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert available_memory(CPU, cgroup=tmp_path) > 2**20
