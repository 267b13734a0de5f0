"""A client prints a story while its server is killed twice in the middle, and the story is whole.

`python -m tests.faults.story_transcript` prints what one would see on a terminal: the client's text as it
comes, what happened to the server in between, and in the end both digests: of what was printed, and of what a
server answered that nobody killed. `--model-path` takes any model; by default it is the demo model.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.limits import Limits
from tests.faults.server_process import ServerProcess, server_process

__all__ = ["main", "tell_story"]

PROMPT = "Once upon a time there was a little lighthouse by the sea. Every night"
KILL_AFTER = (20, 60)
"""Pieces printed when the server is killed."""
PATIENCE_S = 300.0
_PIECE_S = 0.05


async def tell_story(model: str, directory: Path, prompt: str, tokens: int) -> bool:
    """Prints the story and what happened; returns whether it is the undisturbed one, byte by byte."""
    request = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.8, "seed": 7, "ignore_eos": True}
    request["timeout"] = PATIENCE_S
    flags = ("--dtype", "float32", "--threads", "1", "--log-level", "error", "--kv-memory", "256MiB")
    journal = ("--journal", str(directory / "journal.db"))
    async with server_process(directory, "--model-path", model, *journal, *flags) as server:
        async with AsyncSeedanceClient(server.url) as client:
            undisturbed = await client.complete(**request)
        _say(f"$ story.py            (server {server.url}, life {server.starts})\n\n{prompt}")
        printed, reconnects = await _print_story(server, request)
    _say(
        f"\n\nkilled with SIGKILL: {server.kills} times; connections restored under the stream: {reconnects}"
    )
    told, wanted = (hashlib.sha256(text.encode()).hexdigest() for text in (printed, undisturbed.text))
    _say(f"\nprinted      {len(printed.encode()):6} bytes, SHA-256 {told}")
    _say(f"\nundisturbed  {len(undisturbed.text.encode()):6} bytes, SHA-256 {wanted}")
    _say("\nequal\n" if told == wanted else "\nDIFFERENT\n")
    return told == wanted


async def _print_story(server: ServerProcess, request: dict[str, object]) -> tuple[str, int]:
    pieces: list[str] = []
    async with (
        trio.open_nursery() as nursery,
        AsyncSeedanceClient(server.url, limits=Limits(reconnect_timeout_s=PATIENCE_S)) as client,
    ):
        stream = await client.complete(**request, stream=True)
        async for chunk in stream:
            pieces.append(chunk.delta)
            _say(chunk.delta)
            await trio.sleep(_PIECE_S)
            if len(pieces) in KILL_AFTER:
                await server.kill()
                _say(f"⟨kill -9, life {server.starts} is over⟩")
                nursery.start_soon(_restart, server)
        return "".join(pieces), stream.reconnects


async def _restart(server: ServerProcess) -> None:
    server.start()
    await server.wait_ready()
    _say(f"⟨life {server.starts} is ready⟩")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays it; 1 if the story is not whole."""
    parser = argparse.ArgumentParser(description="A story that survives its server.")
    parser.add_argument("--model-path", help="default: the demo model")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=120)
    options = parser.parse_args(arguments)
    model = options.model_path or _demo_model()
    with tempfile.TemporaryDirectory() as directory:
        whole = trio.run(tell_story, model, Path(directory), options.prompt, options.tokens)
    return 0 if whole else 1


def _demo_model() -> str:
    command = [sys.executable, "-m", "seedance_server.demo_model"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
