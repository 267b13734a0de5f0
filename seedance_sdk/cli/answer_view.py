"""One answer on a terminal: markdown above, a line that lives below it, and what happens to its connection.

Blocks of text are laid out once and scroll away; only the block that is still growing, and the line of
figures, are drawn again. What a model wrote is text: nothing of it steers the terminal.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, SegmentLines
from rich.text import Text

from seedance_sdk.cli.context import printable
from seedance_sdk.cli.markdown_flow import MarkdownFlow
from seedance_sdk.cli.pace import Pace, format_ms
from seedance_sdk.completion import Chunk
from seedance_sdk.reconnect import ReconnectDetails
from seedance_sdk.stream_events import Flow, FlowAction, Phase, Reconnected, Status, StreamEvent

__all__ = ["AnswerView"]

_DRAWN_EVERY_S = 0.08


class AnswerView:
    """Shows one answer while it comes; use it as a context manager.

    Args:
        console: A terminal, or anything else that gets plain lines.
        pace: Counts the answer.
    """

    def __init__(self, console: Console, pace: Pace) -> None:
        self._console = console
        self._pace = pace
        self._flow = MarkdownFlow()
        self._state = "asked"
        self._said = ""
        # Whatever draws holds it from the first to the last byte: two threads that draw at once would each
        # move the cursor for what the other has just written.
        self._drawing = threading.RLock()
        self._live = Live(self, console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="seedance-view", daemon=True)

    def __enter__(self) -> Self:
        self._live.start()
        self._ticking.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._ticking.join()
        rest = self._flow.end()
        self._live.stop()
        self._print_block(rest)

    def note(self, chunk: Chunk) -> None:
        """Shows a chunk."""
        self._pace.note(chunk)
        with self._drawing:
            self._state = ""
            for block in self._flow.push(printable(chunk.delta)):
                self._print_block(block)

    def say(self, state: str) -> None:
        """Shows this beside the figures from now on, whatever happens to the stream."""
        self._said = state

    def _tick(self) -> None:
        while not self._over.wait(_DRAWN_EVERY_S):
            with self._drawing:
                self._live.refresh()

    def tell(self, event: StreamEvent) -> None:
        """Shows what happens to the stream; from any thread."""
        with self._drawing:
            self._tell(event)

    def _tell(self, event: StreamEvent) -> None:
        say = self._print_event
        match event:
            case ReconnectDetails():
                self._state = "waiting for the server"
                if event.attempt == 1:
                    say(
                        f"connection lost ({printable(str(event.caused_by))}): the answer waits at the server"
                    )
            case Reconnected():
                self._state = ""
                say(f"connected again after {format_ms(event.outage_s * 1e3)}: the answer goes on")
            case Status(phase=Phase.QUEUED):
                self._state = f"in line, place {(event.position or 0) + 1}"
            case Status():
                done = f" {event.tokens_done} of {event.tokens_total}" if event.tokens_total else ""
                self._state = f"reading the prompt{done}"
            case Flow(action=FlowAction.PAUSE):
                self._state = "the server waits for this terminal"
            case Flow():
                self._state = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        growing = self._lay_out(self._flow.open)
        for line in growing[-max(1, console.height - 3) :]:
            yield from line
            yield Segment.line()
        yield Text(
            " · ".join(part for part in (self._pace.line(), self._said or self._state) if part), style="dim"
        )

    def _lay_out(self, text: str) -> list[list[Segment]]:
        """The lines of a block, addresses of links in sight; the empty ones behind some kinds go."""
        laid_out = Markdown(text, hyperlinks=False)
        lines = self._console.render_lines(laid_out, pad=False) if text.strip() else []
        while lines and not "".join(segment.text for segment in lines[-1]).strip():
            lines.pop()
        return lines

    def _print_block(self, block: str) -> None:
        lines = self._lay_out(block)
        if lines:
            self._console.print(SegmentLines([*lines, []], new_lines=True), end="")

    def _print_event(self, words: str) -> None:
        self._console.print(Text(f"── {words}", style="yellow"))
