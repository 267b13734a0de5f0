"""``seedance complete``: a text goes on, from stdin or the command line to stdout, as it comes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from attrs import asdict

from seedance_sdk.blocking import Stream
from seedance_sdk.cli.arguments import add_sampling, add_server, sampling_of
from seedance_sdk.cli.context import Context
from seedance_sdk.cli.pace import Pace

__all__ = ["add_command", "run"]


def add_command(commands: Any) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "complete",
        help="continue a text",
        description="Continues a text: that of the command line, or what stdin holds.",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", nargs="?", help="the text; '-' or nothing reads stdin")
    parser.add_argument("--echo", action="store_true", help="write the prompt before what follows it")
    parser.add_argument(
        "--json", action="store_true", help="write one object at the end, with usage and times"
    )
    parser.add_argument("--stats", action="store_true", help="end with a line of figures on stderr")
    add_server(parser)
    add_sampling(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace, context: Context) -> int:
    """Runs it; what is read of stdin is the prompt as it is, its last line break included."""
    prompt = given.prompt
    if prompt in (None, "-"):
        if context.stdin.isatty():
            context.complain("the prompt ends with Ctrl-D")
        prompt = context.stdin.read()
    with context.client(given.url, given.api_key) as client:
        pace = Pace()
        with client.complete(prompt=prompt, stream=True, **sampling_of(given)) as stream:
            if given.json:
                _write_object(stream, context)
                return 0
            if given.echo:
                context.write(prompt)
            for chunk in stream:
                pace.note(chunk)
                context.write(chunk.delta)
        if context.out.is_terminal:
            context.write("\n")
        if given.stats:
            context.complain(pace.line())
    return 0


def _write_object(stream: Stream, context: Context) -> None:
    whole = asdict(stream.collect())
    context.write(
        json.dumps({name: whole[name] for name in ("text", "finish_reason", "stop", "usage", "timing")})
    )
    context.write("\n")
