"""The ``seedance`` command line: what can be asked for, and how each failure ends.

Whatever is expected to go wrong is one line on stderr and an exit code: 1 the server or the request, 2 the
command line, 3 the connection, 130 Ctrl-C. A reader of the output that leaves is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from seedance_sdk.cli import chat, complete, doctor, latency
from seedance_sdk.cli.arguments import VERSION
from seedance_sdk.cli.context import Context
from seedance_sdk.errors import ConnectionFailed, SeedanceError

__all__ = ["build_parser", "main"]

FAILED, MISUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130


class _OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the full usage is one ``--help`` away."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: error: {message} (see --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser; its result has ``run``, a function of the arguments and a `Context`."""
    parser = _OneLineParser(
        prog="seedance",
        description="Talk to a Seedance server.",
        epilog="SEEDANCE_URL and SEEDANCE_API_KEY say which server and which key, unless flags do.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"seedance {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (chat, complete, latency, doctor):
        module.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None, context: Context | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The command line without the program's name; None for the process's own.
        context: Terminal and network; None for the process's own.

    Returns:
        The exit code.

    Raises:
        SystemExit: After ``--help`` and ``--version``, and for arguments that make no sense.
    """
    context = context or Context()
    given = build_parser().parse_args(arguments)
    try:
        return int(given.run(given, context))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python would complain once more when it flushes at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SeedanceError, ValueError) as error:
        context.complain(f"seedance: error: {error}")
        if isinstance(error, ConnectionFailed):
            context.complain("`seedance doctor` finds out why")
            return UNREACHABLE
        return FAILED if isinstance(error, SeedanceError) else MISUSED
