"""How much memory this process may still use: the honest base of the KV pool's default size.

On a CPU the machine's available memory, or what is left of the control group's limit where that is less (a
container sees its host's memory in /proc/meminfo, and is killed at its own limit). On CUDA the device's free
memory. It knows nothing of models and pools.
"""

from pathlib import Path

import psutil
import torch

__all__ = ["available_memory"]

_CGROUPS_V2 = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def available_memory(
    device: torch.device, *, cgroups: Path = _CGROUPS_V2, own_cgroup: Path = _OWN_CGROUP
) -> int:
    """Bytes that can still be allocated on ``device``.

    Args:
        device: A CPU or CUDA device.
        cgroups: Where the control groups of version 2 are mounted; a missing directory means no limit.
        own_cgroup: The file that says which of them is this process's.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    for group in _groups(cgroups, own_cgroup):
        try:
            limit = int((group / "memory.max").read_text())  # "max" where there is none
            used = int((group / "memory.current").read_text())
        except (OSError, ValueError):
            continue
        available = min(available, limit - used + _reclaimable(group))
    return max(0, available)


def _groups(cgroups: Path, own_cgroup: Path) -> list[Path]:
    """This process's group and those around it: the tightest limit counts."""
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        lines = []
    inside = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    group = cgroups / inside
    return [group, *(parent for parent in group.parents if parent.is_relative_to(cgroups))]


def _reclaimable(group: Path) -> int:
    """Bytes of files that are kept only while nobody needs the memory, such as weights that were read."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
