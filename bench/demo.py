"""The demo: a real model behind a real server answers a client, token by token, then the numbers.

`nox -s demo` runs it with Gemma 3 270M, a small base model that continues text: questions reach it in a
few-shot template. `--model-path` takes any other model; one that has a chat template is asked in chat turns.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import frozen
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ending import run_to_end
from figures import Answer, ask, milliseconds, percentile
from seedance_sdk import AsyncSeedanceClient
from server_process import demo_model, running_server, stop_like_ctrl_c_on_sigterm

FEW_SHOT = """\
Short, friendly and correct answers to simple questions.

Q: Why do leaves fall in autumn?
A: In autumn the days get shorter and colder, so trees stop feeding their leaves. The leaves turn yellow \
and red, dry out and fall to the ground.

Q: Name three fruits.
A: Apples, bananas and oranges. They are sweet and full of vitamins.

Q: What is the capital of France?
A: The capital of France is Paris, a city on the river Seine.

Q: {question}
A:"""
QUESTIONS = ("What is the capital of Japan?", "What is a library?", "What does a doctor do?")
OPENINGS = (
    "Once upon a time there was a small boat that",
    "The old lighthouse stood on a rock by the sea.",
    "It was a cold winter morning and",
)
CHAT_TASKS = (
    "Tell me a short story about a small boat.",
    "Describe an old lighthouse on a rock by the sea.",
    "Describe a cold winter morning.",
)
# Plain text gets a line for each stream this often: one sees them side by side, and the output stays short.
PLAIN_INTERVAL_S = 0.5
PLAIN_WIDTH = 100
LONGEST_TITLE = 20  # leaves room for the figures in 80 columns


@frozen
class Task:
    """One thing to ask: what a person reads before the answer, and the request itself."""

    title: str
    request: dict[str, Any]
    answer_follows: str = "\n"


def tasks(chat: bool) -> tuple[list[Task], list[Task]]:
    """Return what is asked in turn and what is asked at once."""
    # Greedy, so that everybody sees the same; the penalty keeps a small model from repeating itself.
    short: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}
    long: dict[str, Any] = {"temperature": 0.0, "max_tokens": 72, "repetition_penalty": 1.1}
    if chat:
        return [_chat(text, short) for text in QUESTIONS], [_chat(text, long) for text in CHAT_TASKS]
    short["stop"] = ["\n\n", "\nQ:"]
    return (
        [Task(question, {"prompt": FEW_SHOT.format(question=question), **short}) for question in QUESTIONS],
        [Task(opening, {"prompt": opening, **long}, answer_follows="") for opening in OPENINGS],
    )


def _chat(text: str, options: dict[str, Any]) -> Task:
    return Task(text, {"messages": [{"role": "user", "content": text}], **options})


def has_chat_template(model_path: str) -> bool:
    """Whether a model directory has a chat template; true for what is no directory: most models chat."""
    directory = Path(model_path)
    if not directory.is_dir():
        return True
    settings = directory / "tokenizer_config.json"
    return (directory / "chat_template.jinja").exists() or (
        settings.exists() and '"chat_template"' in settings.read_text()
    )


def printable(text: str) -> str:
    """Return the text without control characters: what a model says must not steer the terminal."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


class Stage:
    """Where the answers appear: side by side on a terminal, line by line elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def in_turn(self, client: AsyncSeedanceClient, task: Task) -> Answer:
        """Show one answer while it arrives."""
        self._console.print(Text(f"\n{task.title}", style="bold"))
        started = False

        def show(text: str) -> None:
            nonlocal started
            text = printable(text) if started else printable(text).lstrip()
            self._console.print(Text(text), end="", soft_wrap=True)
            started = started or bool(text)

        answer = await ask(client, task.request, show)
        self._console.print()
        return answer

    async def at_once(self, client: AsyncSeedanceClient, tasks: list[Task]) -> list[Answer]:
        """Show several answers that arrive together, and return them in the order asked."""
        texts = ["" for _ in tasks]
        answers: dict[int, Answer] = {}

        async def one(index: int, task: Task, show: Any) -> None:
            answers[index] = await ask(client, task.request, lambda text: show(index, text))

        if self._console.is_terminal:
            with Live(console=self._console, refresh_per_second=20) as live:

                def draw(index: int, text: str) -> None:
                    texts[index] += printable(text)
                    live.update(self._panels(tasks, texts))

                async with trio.open_nursery() as nursery:
                    for index, task in enumerate(tasks):
                        nursery.start_soon(one, index, task, draw)
        else:
            for index, task in enumerate(tasks):
                self._console.print(f"  [{index + 1}] {task.title}", markup=False, soft_wrap=True)

            def keep(index: int, text: str) -> None:
                texts[index] += printable(text)

            async with trio.open_nursery() as printing:
                printing.start_soon(self._print_lines, texts)
                async with trio.open_nursery() as nursery:
                    for index, task in enumerate(tasks):
                        nursery.start_soon(one, index, task, keep)
                printing.cancel_scope.cancel()
            self._flush(texts)
        return [answers[index] for index in range(len(tasks))]

    def _panels(self, tasks: list[Task], texts: list[str]) -> Columns:
        width = max(24, self._console.width // len(tasks) - 1)
        return Columns(
            Panel(Text.assemble((task.title, "bold"), task.answer_follows + text), width=width)
            for task, text in zip(tasks, texts, strict=True)
        )

    async def _print_lines(self, texts: list[str]) -> None:
        while True:
            await trio.sleep(PLAIN_INTERVAL_S)
            self._flush(texts)

    def _flush(self, texts: list[str]) -> None:
        for index, text in enumerate(texts):
            if text:
                line = f"  [{index + 1}] {' '.join(text.split())}"
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
                texts[index] = ""


def numbers(rows: list[tuple[Task, Answer]]) -> Table:
    """Lay out what each answer took."""
    headings = ("tokens", "first token", "tokens/s", "gap P50", "gap P99", "gap max")
    table = _table("as the client saw it, times in ms", headings)
    for task, answer in rows:
        gaps = answer.gaps_s
        rate = answer.tokens_per_second
        table.add_row(
            Text(_shortened(task.title)),
            str(answer.tokens),
            milliseconds(answer.first_token_s),
            "-" if math.isnan(rate) else f"{rate:.1f}",
            milliseconds(percentile(gaps, 0.50)),
            milliseconds(percentile(gaps, 0.99)),
            milliseconds(max(gaps, default=math.nan)),
        )
    return table


def stages(rows: list[tuple[Task, Answer]]) -> Table:
    """Lay out where the server spent the time to the first token."""
    names = ("queue", "preprocess", "prefill", "first_decode", "cache_sync", "egress")
    headings = [name.replace("_", " ") for name in names]
    table = _table("the time to the first token, as the server spent it, in ms", headings)
    for task, answer in rows:
        times = [getattr(answer.timing, f"{name}_ms", math.nan) for name in names]
        table.add_row(Text(_shortened(task.title)), *(f"{value:.1f}" for value in times))
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("answer", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    return table


def _shortened(title: str) -> str:
    return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "…"


async def converse(url: str, chat: bool, console: Console) -> None:
    """Ask everything and print the numbers."""
    stage = Stage(console)
    first, together = tasks(chat)
    async with AsyncSeedanceClient(url) as client:
        console.rule("three in turn")
        rows = [(task, await stage.in_turn(client, task)) for task in first]
        console.print()
        console.rule("three at once")
        started_s = time.monotonic()
        answers = await stage.at_once(client, together)
        spent_s = time.monotonic() - started_s
    tokens = sum(answer.tokens for answer in answers)
    rows += zip(together, answers, strict=True)
    console.print()
    console.print(numbers(rows))
    console.print(stages(rows))
    console.print(
        f"Three at once: {tokens} tokens in {spent_s:.2f} s, {tokens / spent_s:.1f} tokens/s in all."
    )


def main() -> int:
    """Run the demo; 0 if everything answered and the server stopped cleanly."""
    parser = argparse.ArgumentParser(prog="nox -s demo --", description="A model answers, then its numbers.")
    parser.add_argument("--model-path", help="another model: a directory, a hub id or a GGUF file")
    parser.add_argument("--plain", action="store_true", help="no colours and no moving text, as when piped")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--chat", action="store_true", help="ask in chat turns (default: if it has a template)")
    kind.add_argument("--complete", action="store_true", help="let the model continue text")
    options = parser.parse_args()
    console = Console(
        force_terminal=False if options.plain else None, width=None if sys.stdout.isatty() else PLAIN_WIDTH
    )

    def report(line: str) -> None:
        console.print(f"  {line}", style="dim", markup=False, highlight=False, soft_wrap=True)

    stop_like_ctrl_c_on_sigterm()
    started_s = time.monotonic()

    def show() -> None:
        console.rule("the model")
        path = options.model_path or demo_model()
        chat = options.chat or (not options.complete and has_chat_template(path))
        report(path)
        console.rule("the server")
        with running_server(["--model-path", path, "--port", "0"], report) as server:
            report(f"ready on {server.url} after {server.start_s:.1f} s")
            trio.run(converse, server.url, chat, console)
        console.print(f"The server has stopped. {time.monotonic() - started_s:.0f} s in all.")

    _, status = run_to_end("demo", show)
    return status


if __name__ == "__main__":
    sys.exit(main())
