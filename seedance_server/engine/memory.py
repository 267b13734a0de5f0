"""How much memory this process may still use: the honest base of the KV pool's default size.

On a CPU the machine's available memory, or what is left of the control group's limit where that is less (a
container sees its host's memory in /proc/meminfo, and is killed at its own limit). On CUDA the device's free
memory. It knows nothing of models and pools.
"""

from pathlib import Path

import psutil
import torch

__all__ = ["available_memory"]

_CGROUP_V2 = Path("/sys/fs/cgroup")


def available_memory(device: torch.device, *, cgroup: Path = _CGROUP_V2) -> int:
    """Bytes that can still be allocated on ``device``.

    Args:
        device: A CPU or CUDA device.
        cgroup: Directory of this process's control group, version 2; a missing one means no limit.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text())  # "max" where there is none
        return max(0, min(available, limit - int((cgroup / "memory.current").read_text())))
    except (OSError, ValueError):
        return available
