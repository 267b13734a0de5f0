"""What a token weighs on the wire: answers of a real model, counted at the socket and played in every mode.

First the real thing: a server with the demo model and one client, a relay between them that counts what the
server sends (`byte_counter.py`), one stream and several on the connection, in three languages. All of it
counts: WELCOME, checkpoints, digests, ends. Then the pieces that came are played through each encoding
(`token_modes.py`), and through the chunks of an OpenAI-compatible server beside them.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import psutil
import trio

from bar_chart import Bar, BarPlot, bar_charts
from byte_counter import counting
from ending import run_to_end
from load import RESULTS, machine
from seedance_sdk import AsyncSeedanceClient
from seedance_wire.compression import Compressor, Decompressor
from server_process import demo_model, running_server, stop_like_ctrl_c_on_sigterm
from token_modes import MODES, play

__all__ = ["main"]

AIMS = {1: 16.0, 8: 12.0}
"""Bytes a token that may be needed, by streams on the connection."""
CONTEXTS = 100
PROMPTS = {
    "English": (
        "The history of the lighthouse begins",
        "A short essay about the sea:",
        "In the old town there was",
        "The theory of evolution explains",
        "Once upon a time, a young fox",
        "How to bake bread at home:",
        "The city council decided on Monday",
        "Music is often described as",
    ),
    "Chinese": (
        "长城的历史",
        "从前有一个小村庄",
        "人工智能的发展",
        "北京是中国的首都",
        "春天来了",
        "如何做一道好菜",
        "科学家最近发现",
        "关于教育的一篇文章",
    ),
    "code": (
        "def quicksort(items):\n",
        "class Stack:\n    def __init__(self):\n",
        "import json\n\ndef load(path):\n",
        "function fetchUser(id) {\n",
        "#include <stdio.h>\n\nint main() {\n",
        "SELECT name, age FROM users\n",
        "fn main() {\n    let mut v = Vec::new();\n",
        'package main\n\nimport "fmt"\n\nfunc main() {\n',
    ),
}


async def record(url: str, prompts: Sequence[str], max_tokens: int) -> dict[str, Any]:
    """Have all prompts answered at once over one connection; return the pieces and what was counted."""
    answers: list[list[tuple[str, int]]] = [[] for _ in prompts]
    tokens = 0

    async def one(client: AsyncSeedanceClient, prompt: str, pieces: list[tuple[str, int]]) -> None:
        nonlocal tokens
        asked = await client.complete(
            prompt=prompt, max_tokens=max_tokens, ignore_eos=True, temperature=0.8, seed=1, stream=True
        )
        async with asked as stream:
            async for chunk in stream:
                if chunk.delta:
                    pieces.append((chunk.delta, chunk.token_count))
                if chunk.usage is not None:
                    tokens += chunk.usage.completion_tokens

    address, _, path = url.removeprefix("ws://").partition("/")
    async with counting(int(address.rpartition(":")[2])) as (port, counted):
        relayed = f"ws://127.0.0.1:{port}/{path}"
        async with AsyncSeedanceClient(relayed) as client, trio.open_nursery() as nursery:
            for prompt, pieces in zip(prompts, answers, strict=True):
                nursery.start_soon(one, client, prompt, pieces)
    return {"answers": answers, "tokens": tokens, "counted": attrs.asdict(counted)}


def contexts() -> dict[str, float]:
    """Return what a zstd context weighs at each end in this process, in bytes."""

    def weigh(make: Callable[[], object]) -> float:
        gc.collect()
        before: int = psutil.Process().memory_info().rss
        kept = [make() for _ in range(CONTEXTS)]
        after: int = psutil.Process().memory_info().rss
        return (after - before) / len(kept)

    message = bytes(range(256)) * 128  # twice the window: all of a context is in use

    def compressor() -> Compressor:
        made = Compressor(trial_messages=0)
        made.pack(message, last=False)
        return made

    def decompressor() -> Decompressor:
        made = Decompressor(1 << 20)
        made.unpack(packed)
        return made

    packed = Compressor(trial_messages=0).pack(message, last=False)
    return {"compressor_bytes": weigh(compressor), "decompressor_bytes": weigh(decompressor)}


def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, Any]:
    """Record every language with one stream and with several, and play it; return the whole record."""
    path = options.model_path or demo_model()
    found: dict[str, Any] = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": Path(path).name,
        "max_tokens": options.max_tokens,
        "machine": machine(),
        "contexts": contexts(),
        "levels": [],
    }
    with tempfile.TemporaryDirectory() as directory:
        journal = str(Path(directory) / "journal.db")
        flags = ["--model-path", path, "--port", "0", "--log-level", "warning", "--journal", journal]
        flags += ["--speculative-tokens", "0"]  # several tokens in a piece would weigh less than one each
        recordings = []
        with running_server(flags, report) as server:
            for language, prompts in PROMPTS.items():
                for streams in AIMS:
                    report(f"{language}, {streams} at once, {options.max_tokens} tokens each …")
                    got = trio.run(record, server.url, prompts[:streams], options.max_tokens)
                    recordings.append((language, streams, got))
    report("playing what came …")
    for language, streams, got in recordings:
        text = sum(len(text.encode()) for answer in got["answers"] for text, _ in answer)
        modes = {
            mode: attrs.asdict(play(got["answers"], mode, model=found["model"], repeats=options.repeats))
            for mode in MODES
        }
        found["levels"].append(
            {
                "language": language,
                "streams": streams,
                "tokens": got["tokens"],
                "pieces": sum(map(len, got["answers"])),
                "text_bytes": text / got["tokens"],
                "socket_bytes": got["counted"]["bytes"] / got["tokens"],
                "messages": got["counted"]["messages"],
                "modes": modes,
            }
        )
    return found


def table(found: dict[str, Any]) -> str:
    """Lay the figures out as text; bytes, microseconds and ratios are of one token."""
    lines = [f"{'':26}{'bytes':>7}{'SSE is':>8}{'server µs':>11}{'client µs':>11}"]
    for level in found["levels"]:
        sse = level["modes"]["OpenAI SSE"]["bytes"]
        lines.append(
            f"{level['language']}, {level['streams']} at once: {level['tokens']} tokens, "
            f"{level['text_bytes']:.1f} bytes of text each"
        )
        socket = level["socket_bytes"]
        lines.append(f"  {'at the socket, all':24}{socket:7.1f}{sse / socket:7.1f}x")
        for mode, played in level["modes"].items():
            client = f"{played['decode_us']:11.1f}" if played["decode_us"] else f"{'-':>11}"
            zstd = " zstd" if played["compressed"] else ""
            lines.append(
                f"  {mode:24}{played['bytes']:7.1f}{sse / played['bytes']:7.1f}x"
                f"{played['encode_us']:11.1f}{client}{zstd}"
            )
    weights = found["contexts"]
    lines.append(
        f"a zstd context: {weights['compressor_bytes'] / 1e3:.0f} kB at its sender, "
        f"{weights['decompressor_bytes'] / 1e3:.0f} kB at its reader, none while no stream runs"
    )
    return "\n".join(lines)


def picture(found: dict[str, Any]) -> str:
    """Draw the bytes of a token: a plot for each number of streams."""
    shown = ("seedance.v1", "whole frames", "seedance.v1.raw", "seedance.v1.json", "OpenAI SSE")
    plots = []
    for streams, aim in AIMS.items():
        bars = []
        for group, level in enumerate(lv for lv in found["levels"] if lv["streams"] == streams):
            bars.append(Bar(f"{level['language']}, at the socket", level["socket_bytes"], group))
            bars += [
                Bar(f"{level['language']}, {mode}", level["modes"][mode]["bytes"], group) for mode in shown
            ]
        what = "stream" if streams == 1 else "streams"
        plots.append(
            BarPlot(f"bytes of a token, {streams} {what} on a connection", bars, (aim, f"{aim:.0f}"))
        )
    return bar_charts(plots)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a token weighed more at the socket than it may."""
    parser = argparse.ArgumentParser(prog="nox -s bench -- wire", description=__doc__)
    parser.add_argument("--model-path", help="directory, hub id or GGUF file (default: the demo model)")
    parser.add_argument("--max-tokens", type=int, default=200, help="tokens of each answer (default 200)")
    parser.add_argument("--repeats", type=int, default=5, help="the least time of so many counts")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go")
    options = parser.parse_args(arguments)
    stop_like_ctrl_c_on_sigterm()
    found, status = run_to_end(
        "bench", lambda: measure(options, lambda line: print(line, file=sys.stderr, flush=True))
    )
    if found is None:
        return status
    options.results.mkdir(parents=True, exist_ok=True)
    written = options.results / f"wire-{found['taken_at'].replace(':', '').replace('+0000', 'Z')}.json"
    written.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    written.with_suffix(".svg").write_text(picture(found))
    print(table(found))
    print(f"\nall figures in {written}, drawn in {written.with_suffix('.svg').name}")
    return 1 if any(lv["socket_bytes"] > AIMS[lv["streams"]] for lv in found["levels"]) else 0


if __name__ == "__main__":
    sys.exit(main())
