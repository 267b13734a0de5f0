"""What a second turn gains from the first: the time to its first token, with reuse and without.

Each conversation opens with a text of its own, so that nothing but its own first turn can help; its second
turn goes on from there (``continues``) with a few words. The same is done with a server that keeps nothing
(`--prefix-reuse off`). Conversations come one after the other: what is compared is computing, not waiting.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from attrs import asdict, frozen

from figures import milliseconds, percentile
from seedance_sdk import AsyncSeedanceClient
from server_process import ServerFailed, demo_model, running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["Turn", "converse", "main"]

_WORDS = ("the", "old", "boat", "went", "down", "a", "cold", "river", "and", "its", "light", "grew", "small")


@frozen
class Turn:
    """One turn of a conversation.

    Attributes:
        first_token_s: Time to its first piece of text.
        prompt_tokens: All that came before its answer.
        cached_tokens: How many of them weren't computed again.
    """

    first_token_s: float
    prompt_tokens: int
    cached_tokens: int


async def converse(client: AsyncSeedanceClient, words: int, seed: int) -> tuple[Turn, Turn]:
    """Two turns, the second of which goes on from the first.

    Args:
        client: A connected client.
        words: Length of the opening.
        seed: Decides its words.

    Raises:
        seedance_sdk.SeedanceError: A request failed.
    """
    opening = " ".join(random.Random(seed).choices(_WORDS, k=words))
    turns = []
    earlier = None
    for prompt in (opening, " And then"):
        started_s = time.monotonic()
        first_s, usage = math.nan, None
        stream = await client.complete(
            prompt=prompt, continues=earlier, max_tokens=16, temperature=0.0, ignore_eos=True, stream=True
        )
        async with stream:
            async for chunk in stream:
                if chunk.delta and math.isnan(first_s):
                    first_s = chunk.received_at - started_s
                usage = chunk.usage or usage
        assert usage is not None
        turns.append(Turn(first_s, usage.prompt_tokens, usage.cached_tokens))
        earlier = stream
    return turns[0], turns[1]


async def _measure(url: str, words: int, conversations: int) -> list[tuple[Turn, Turn]]:
    async with AsyncSeedanceClient(url) as client:
        await converse(client, words, seed=0)  # warms up
        return [await converse(client, words, seed) for seed in range(1, conversations + 1)]


def _row(name: str, turns: Sequence[Turn]) -> str:
    times = [turn.first_token_s for turn in turns]
    middle = turns[len(turns) // 2]
    cells = [milliseconds(percentile(times, share)) for share in (0.0, 0.5, 1.0)]
    return (
        f"{name:24} {middle.prompt_tokens:7} {middle.cached_tokens:7} {cells[1]:>8} "
        f"{cells[0] + ' to ' + cells[2]:>14}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures with and without reuse, and prints a table, and JSON if asked."""
    parser = argparse.ArgumentParser(prog="bench turns", description=__doc__)
    parser.add_argument("--words", type=int, default=800, help="length of a conversation's opening")
    parser.add_argument("--conversations", type=int, default=7, help="how many; the median counts")
    parser.add_argument("--model-path", default=None, help="another model than the demo's")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args(argv)
    stop_like_ctrl_c_on_sigterm()
    results: dict[str, Any] = {}
    print(f"{'':24} {'prompt':>7} {'cached':>7} {'median':>8} {'from ... to':>14}   first token, ms")
    try:
        model = arguments.model_path or demo_model()
        flags = ["--model-path", model, "--port", "0"]
        for reuse in ("on", "off"):
            with (
                TemporaryDirectory() as directory,
                running_server(
                    [*flags, "--journal", f"{directory}/journal.db", "--prefix-reuse", reuse],
                    lambda _line: None,
                ) as server,
            ):
                pairs = trio.run(_measure, server.url, arguments.words, arguments.conversations)
            for number, turns in enumerate(zip(*pairs, strict=True), 1):
                print(_row(f"turn {number}, reuse {reuse}", turns), flush=True)
            results[reuse] = [[asdict(turn) for turn in pair] for pair in pairs]
    except ServerFailed as error:
        print(f"bench turns: {error}", file=sys.stderr)
        return 1
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
