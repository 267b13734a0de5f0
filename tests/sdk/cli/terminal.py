"""A context for commands under test: text in and out, and a scripted server instead of the network."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from seedance_sdk.cli.command import main
from seedance_sdk.cli.context import Context
from seedance_sdk.testing import ScriptedServer

__all__ = ["Lines", "Terminal"]


class Lines:
    """What a person types, a line after the other; an exception among them is raised in its place."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines: Iterator[str | type[BaseException]] = iter(lines)

    def prompt(self, message: str) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


class Terminal:
    """Runs commands, and keeps what they wrote."""

    def __init__(self, server: ScriptedServer | None = None, stdin: str = "") -> None:
        self._out, self._err = io.StringIO(), io.StringIO()
        self.context = Context(
            stdin=io.StringIO(stdin), stdout=self._out, stderr=self._err, connector=server or ScriptedServer()
        )
        self.context.out.width = self.context.err.width = 100

    def run(self, *arguments: str) -> int:
        return main(list(arguments), self.context)

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def err(self) -> str:
        return self._err.getvalue()

    @property
    def lines(self) -> Sequence[str]:
        return [line.rstrip() for line in self.out.splitlines() if line.strip()]
