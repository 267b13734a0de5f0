"""What a command runs in: a terminal, and a way to make clients. A test has its own.

Text that a model or a server wrote never steers the terminal: `printable` takes its control characters out.
"""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console

from seedance_sdk.blocking import SeedanceClient
from seedance_sdk.transport import Connector

__all__ = ["Context", "printable"]


def printable(text: str) -> str:
    """The text without characters that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}" for sign in text
    )


class Context:
    """Where a command reads and writes, and how it reaches a server.

    Args:
        stdin: For prompts that are piped in.
        stdout: For what was asked for.
        stderr: For everything else.
        connector: For `SeedanceClient`; None for the network.

    Attributes:
        out: Writes to ``stdout``, with colours where that is a terminal.
        err: The same for ``stderr``.
    """

    def __init__(
        self,
        *,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        connector: Connector | None = None,
    ) -> None:
        self.stdin = stdin or sys.stdin
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self.connector = connector
        self.out = Console(file=self.stdout, highlight=False)
        self.err = Console(file=self.stderr, highlight=False)

    def client(self, url: str | None, api_key: str | None) -> SeedanceClient:
        """Makes a client; nothing is connected yet.

        Raises:
            ValueError: URL or key are malformed.
        """
        return SeedanceClient(url, api_key=api_key, connector=self.connector)

    def write(self, text: str) -> None:
        """Writes what was asked for, at once: as it is into a pipe, printable to a terminal."""
        self.stdout.write(printable(text) if self.out.is_terminal else text)
        self.stdout.flush()

    def complain(self, text: str) -> None:
        """Writes a line beside what was asked for."""
        self.err.print(printable(text), markup=False, soft_wrap=True)
