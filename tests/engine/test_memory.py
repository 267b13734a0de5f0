import pytest
import torch

from seedance_server.engine.memory import available_memory

CPU = torch.device("cpu")


def available(cgroups, own="0::/\n"):
    """Bytes with control groups below `cgroups`, this process being in the one that `own` names."""
    (cgroups / "own").write_text(own)
    return available_memory(CPU, cgroups=cgroups, own_cgroup=cgroups / "own")


def test_available_memory_is_what_the_control_group_leaves(tmp_path):
    """In a container the limit counts, not the host's memory."""
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available(tmp_path) == 600000


def test_available_memory_counts_the_files_that_were_only_read(tmp_path):
    """Weights' files in the page cache give way: a warm cache is no full memory."""
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 100000\ninactive_file 750000\nactive_file 50000\n")
    assert available(tmp_path) == 850000


@pytest.mark.parametrize(
    ("inner", "outer", "left"), [(1000, 5000, 900), (5000, 1000, 900), ("max", 1000, 900)]
)
def test_available_memory_is_that_of_the_tightest_group_around(tmp_path, inner, outer, left):
    """A service's own limit counts below its slice's, and the slice's where it is tighter."""
    for group, limit in ((tmp_path / "slice", outer), (tmp_path / "slice" / "service", inner)):
        group.mkdir()
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text("100\n")
    assert available(tmp_path, "0::/slice/service\n") == left


def test_available_memory_is_never_negative(tmp_path):
    """A control group over its limit has nothing left."""
    (tmp_path / "memory.max").write_text("1\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available(tmp_path) == 0


@pytest.mark.parametrize("limit", ["max\n", None])
def test_available_memory_is_the_machine_s_when_there_is_no_limit(tmp_path, limit):
    """No control group, or one without a limit, changes nothing."""
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert available(tmp_path) > 2**20
