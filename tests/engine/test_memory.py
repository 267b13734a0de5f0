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


def test_available_memory_heeds_the_soft_limit(tmp_path):
    """A group above its "high" mark is held up until it gives memory back: that is no room."""
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.high").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert available(tmp_path) == 600000


def _old_group(directory, limit, used, inactive=0):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (directory / "memory.usage_in_bytes").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {inactive}\n")


OLD_LINES = "9:name=systemd:/\n4:cpu,memory:/slice/service\n0::/\n"


def test_available_memory_is_what_a_group_of_version_1_leaves(tmp_path):
    """Many hosts still limit memory the old way, under other names."""
    _old_group(tmp_path / "memory" / "slice" / "service", 1_000_000, 900_000, inactive=750_000)
    assert available(tmp_path, OLD_LINES) == 850_000


@pytest.mark.parametrize(("inner", "outer"), [(1000, 5000), (5000, 1000), (9223372036854771712, 1000)])
def test_available_memory_is_that_of_the_tightest_group_of_version_1(tmp_path, inner, outer):
    """Its own limit or that of a group around it; the largest number stands for none."""
    _old_group(tmp_path / "memory" / "slice", outer, 100)
    _old_group(tmp_path / "memory" / "slice" / "service", inner, 100)
    assert available(tmp_path, OLD_LINES) == 900


def test_available_memory_is_the_container_s_whose_group_is_mounted_as_the_root(tmp_path):
    """The path is the host's, and nothing is there."""
    _old_group(tmp_path / "memory", 1000, 100)
    assert available(tmp_path, "4:memory:/docker/0123456789abcdef\n") == 900
    (tmp_path / "memory.max").write_text("700")
    (tmp_path / "memory.current").write_text("100")
    assert available(tmp_path, "0::/docker/0123456789abcdef\n") == 600


def test_available_memory_is_the_least_of_both_versions_side_by_side(tmp_path):
    """A hybrid host has version 2 in a corner of its own."""
    _old_group(tmp_path / "memory" / "slice" / "service", 5000, 100)
    (tmp_path / "unified" / "own").mkdir(parents=True)
    (tmp_path / "unified" / "own" / "memory.max").write_text("1000")
    (tmp_path / "unified" / "own" / "memory.current").write_text("100")
    assert available(tmp_path, "4:memory:/slice/service\n0::/own\n") == 900
