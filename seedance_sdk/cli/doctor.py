"""``seedance doctor``: what stands between this machine and an answer, and what to do about it."""

from __future__ import annotations

import argparse
import json
from typing import Any

import trio
from rich.text import Text

from seedance_sdk.cli.arguments import add_server
from seedance_sdk.cli.context import Context, printable
from seedance_sdk.cli.finding import Finding, Verdict
from seedance_sdk.cli.network_checks import (
    Hopeless,
    Tell,
    check_connection,
    check_name,
    check_ready,
    is_loopback,
)
from seedance_sdk.cli.session_checks import check_session
from seedance_sdk.endpoint import Endpoint, make_endpoint
from seedance_sdk.transport import WebSocketConnector

__all__ = ["add_command", "run"]

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def add_command(commands: Any) -> None:
    """Adds the command to the parser's."""
    parser = commands.add_parser(
        "doctor",
        help="find out what is wrong",
        description="Examines everything between here and an answer. Exits with 1 where something fails.",
        allow_abbrev=False,
    )
    parser.add_argument("--no-request", action="store_true", help="don't have the model make a token")
    parser.add_argument("--json", action="store_true", help="write what was found as a list of objects")
    add_server(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace, context: Context) -> int:
    """Runs it."""
    found: list[Finding] = []

    def tell(finding: Finding) -> None:
        found.append(finding)
        if not given.json:
            _print(finding, context)

    trio.run(_examine, given, context, tell)
    if given.json:
        objects = [
            {"topic": one.topic, "verdict": one.verdict.value, "words": one.words, "advice": one.advice}
            for one in found
        ]
        context.write(f"{json.dumps(objects, indent=2)}\n")
    return 1 if any(one.verdict is Verdict.FAIL for one in found) else 0


async def _examine(given: argparse.Namespace, context: Context, tell: Tell) -> None:
    try:
        endpoint = make_endpoint(given.url, given.api_key, "seedance.v1")
    except ValueError as error:
        tell(Finding(Verdict.FAIL, "URL", str(error), "set SEEDANCE_URL or --url"))
        return
    tell(Finding(Verdict.OK, "URL", endpoint.url))
    tell(_look_at_key(endpoint))
    try:
        if context.connector is None:
            await check_name(endpoint, tell)
            await check_connection(endpoint, tell)
            await check_ready(endpoint, tell)
        await check_session(
            endpoint,
            tell,
            connector=context.connector or WebSocketConnector(None),
            with_request=not given.no_request,
        )
    except Hopeless:
        return


def _look_at_key(endpoint: Endpoint) -> Finding:
    if "Authorization" in endpoint.headers:
        return Finding(Verdict.OK, "key", "one is sent")
    if is_loopback(endpoint.host):
        return Finding(Verdict.OK, "key", "none is sent, to this machine")
    advice = "a server beyond loopback wants one: SEEDANCE_API_KEY or --api-key"
    return Finding(Verdict.WARN, "key", "none is sent", advice)


def _print(finding: Finding, context: Context) -> None:
    line = Text()
    line.append(f"{finding.verdict.value:<5}", style=_STYLES[finding.verdict])
    line.append(f"{finding.topic:<15} {printable(finding.words)}")
    context.out.print(line, soft_wrap=True)
    if finding.advice:
        context.out.print(Text(f"     {'':<15} → {printable(finding.advice)}", style="dim"), soft_wrap=True)
