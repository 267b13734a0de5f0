"""How much memory this process may still use: the honest base of the KV pool's default size.

On a CPU the machine's available memory, or what is left of the control groups' limits where that is less (a
container sees its host's memory in /proc/meminfo, and is killed at its own limit). On CUDA the device's free
memory. Both versions of control groups count, also side by side. It knows nothing of models and pools.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from attrs import frozen

__all__ = ["available_memory"]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


@frozen
class _Names:
    """What a version of control groups calls its files."""

    limits: tuple[str, ...]
    used: str
    inactive: str  # in memory.stat: files that are kept only while nobody needs the memory


_V1 = _Names(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
# Above "high" a group is slowed down until it has given memory back: as good as the end of it.
_V2 = _Names(("memory.max", "memory.high"), "memory.current", "inactive_file")


def available_memory(
    device: torch.device, *, cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP
) -> int:
    """Bytes that can still be allocated on ``device``.

    Args:
        device: A CPU or CUDA device.
        cgroups: Where control groups are mounted; a missing directory means no limit.
        own_cgroup: The file that says which of them are this process's.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    for group, names in _groups(cgroups, own_cgroup):
        try:
            used = int((group / names.used).read_text())
        except (OSError, ValueError):
            continue
        for limit in (_number(group / name) for name in names.limits):
            if limit is not None:
                available = min(available, limit - used + _reclaimable(group, names))
    return max(0, available)


def _groups(cgroups: Path, own_cgroup: Path) -> Iterator[tuple[Path, _Names]]:
    """This process's groups and those around them: the tightest limit counts.

    A container's own group may be mounted as the root, while its path is still told as the host has it: what
    isn't there is passed over, and the root is always among the parents.
    """
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        lines = []
    trees = [(cgroups, "/", _V2)]
    for line in lines:  # "ID:CONTROLLERS:PATH", no controllers for version 2
        _, controllers, path = line.split(":", 2)
        if not controllers:
            trees += [(cgroups, path, _V2), (cgroups / "unified", path, _V2)]
        elif "memory" in controllers.split(","):
            trees.append((cgroups / "memory", path, _V1))
    for root, path, names in trees:
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            if each.is_relative_to(root):
                yield each, names


def _number(file: Path) -> int | None:
    """A limit; None without one, which version 2 calls "max". Version 1 has a number beyond any machine."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(group: Path, names: _Names) -> int:
    """Bytes of files that give way to whoever needs the memory, such as weights that were read."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{names.inactive} ")), 0)
