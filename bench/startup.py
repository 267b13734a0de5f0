"""How long a server takes until it is ready, stage by stage, and the memory that it holds then.

Each start is the real command in a process of its own, with the model's files in the page cache: stages are
read from its own log. What counts as the model's part begins when the first stage, the imports of PyTorch and
Transformers, is over. Memory is the process's share of pages (PSS) a few seconds after it is ready and with
nothing to do, beside the same process with everything imported and nothing loaded.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attrs import field, frozen

from server_process import demo_model, running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["Start", "main", "read_stages", "render"]

KERNELS = ("native", "torch")
SETTLED_S = 2.0
POOL_MIB = 16
"""So small that the checks at start write nearly all of it, large enough for each of them: of a larger pool
some pages cost no memory yet, and what is taken off for it would hide as much of the rest."""
_MEASURED = re.compile(r"\d+\.\d\d(?= times)")  # differs from start to start
IMPORTS = """
import seedance_server.__main__, seedance_server.engine.chat_template, seedance_server.engine.engine
import seedance_server.engine.model_loader
print(open("/proc/self/smaps_rollup").read())
"""


@frozen
class Start:
    """One start.

    Attributes:
        stages: What was done and for how many seconds, in order.
        memory_bytes: PSS when nothing is left to do.
    """

    stages: Mapping[str, float] = field(factory=dict)
    memory_bytes: int = 0

    @property
    def after_imports_s(self) -> float:
        """From the end of the first stage to the ready line."""
        return sum(list(self.stages.values())[1:])


def read_stages(lines: Iterable[str]) -> dict[str, float]:
    """The stages that a server's log tells at level debug, as JSON; other lines are passed over."""
    stages: dict[str, float] = {}
    for line in lines:
        if line.startswith("{"):
            entry = json.loads(line)
            if entry.get("event") == "stage of the start":
                stage = _MEASURED.sub("…", entry["stage"])
                stages[stage] = stages.get(stage, 0.0) + entry["seconds"]
    return stages


def pss_bytes(rollup: str) -> int:
    """The process's share of its pages, from the text of ``smaps_rollup``."""
    return 1024 * int(rollup.split("Pss:")[1].split(maxsplit=1)[0])


def render(starts: Mapping[str, Sequence[Start]], weights_bytes: int, bare_bytes: int) -> str:
    """A table of stages and one of memory, for each kind of kernels.

    *Times* is how often the weights' size the model's part is, beside the pool.

    Args:
        starts: By the kernels' name.
        weights_bytes: Size of the checkpoint's tensors.
        bare_bytes: PSS of a process without a model.
    """
    lines: list[str] = []
    for kernels, runs in starts.items():
        lines += [f"| {kernels} kernels, s | median | least | most |", "|---|---|---|---|"]
        for stage in dict.fromkeys(stage for run in runs for stage in run.stages):
            lines.append(_row(stage, [run.stages.get(stage, 0.0) for run in runs]))
        lines += [_row("**after the imports**", [run.after_imports_s for run in runs]), ""]
    lines += ["| memory, MB | whole | without a model | the model's part | its pool | its weights | times |"]
    lines += ["|---|---|---|---|---|---|---|"]
    pool_bytes = POOL_MIB << 20
    for kernels, runs in starts.items():
        whole = median(run.memory_bytes for run in runs)
        sizes = (whole, bare_bytes, whole - bare_bytes, pool_bytes, weights_bytes)
        figures = " | ".join(f"{size / 1e6:.0f}" for size in sizes)
        ratio = (whole - bare_bytes - pool_bytes) / weights_bytes
        lines.append(f"| {kernels} | {figures} | {ratio:.2f} |")
    return "\n".join(lines)


def _row(name: str, seconds: Sequence[float]) -> str:
    return f"| {name} | {median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |"


def _measure(model: str, kernels: str, settled_s: float) -> Start:
    log: list[str] = []
    flags = ["--model-path", model, "--port", "0", "--kernels", kernels, "--kv-memory", f"{POOL_MIB}MiB"]
    flags += ["--durability", "none", "--log-level", "debug", "--log-format", "json"]
    with running_server(flags, log.append, keep_reporting=True) as server:
        time.sleep(settled_s)
        memory = pss_bytes(Path(f"/proc/{server.process.pid}/smaps_rollup").read_text())
        return Start(read_stages(log), memory)


def _weights_bytes(model: str) -> int:
    return sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts servers, prints the tables, writes the figures."""
    parser = argparse.ArgumentParser(prog="startup", description=__doc__)
    parser.add_argument("--model-path", help="a directory of safetensors (default: the demo model)")
    parser.add_argument("--starts", type=int, default=5, help="for each kind of kernels (default: 5)")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="default: native,torch")
    parser.add_argument("--settled-s", type=float, default=SETTLED_S, help="wait before memory is read")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    model = options.model_path or demo_model()
    bare = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True).stdout
    names = options.kernels.split(",")
    starts: dict[str, list[Start]] = {name: [] for name in names}
    for _ in range(options.starts):
        for name in names:
            starts[name].append(_measure(model, name, options.settled_s))
    weights, bare_bytes = _weights_bytes(model), pss_bytes(bare)
    print(render(starts, weights, bare_bytes))
    if options.json is not None:
        figures: dict[str, Any] = {"weights_bytes": weights, "bare_bytes": bare_bytes}
        figures["starts"] = {
            name: [{"stages": dict(run.stages), "memory_bytes": run.memory_bytes} for run in runs]
            for name, runs in starts.items()
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
