"""The command ``seedance-server keys``: make a key, revoke one, see which there are.

A new key is printed once, on stdout alone, and never again: only its hash is kept. A running server notices
the changed file by itself.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from seedance_server.errors import StartupError
from seedance_server.key_file import add_key, read_key_file, revoke_key
from seedance_server.keys import make_key
from seedance_server.tenants import Tenant, read_tenant

__all__ = ["KEYS_VARIABLE", "run_key_command"]

KEYS_VARIABLE = "SEEDANCE_KEYS"
"""The environment's twin of ``--keys``, the same as the server's own."""


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="seedance-server keys",
        description="Keys of tenants, in the file that the server is given by --keys.",
        allow_abbrev=False,
    )
    place = _OneLineParser(add_help=False, allow_abbrev=False)
    place.add_argument(
        "--keys", type=Path, default=None, metavar="PATH", help=f"the key file (required) [{KEYS_VARIABLE}]"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|list|revoke")
    add = commands.add_parser(
        "add",
        parents=[place],
        allow_abbrev=False,
        help="make a key and print it; a new tenant gets the limits",
    )
    add.add_argument("tenant", help="whose it is")
    add.add_argument("--weight", type=float, help="share of the engine, in proportion to the others'")
    add.add_argument("--priority", choices=("high", "normal", "low"), help="class of the tenant")
    add.add_argument("--max-connections", type=int, metavar="N", help="WebSockets at once")
    add.add_argument("--max-streams", type=int, metavar="N", help="requests at once")
    add.add_argument("--tokens-per-minute", type=int, metavar="N", help="tokens of prompts and answers")
    add.add_argument("--bytes-per-second", type=int, metavar="N", help="what is sent to it")
    add.add_argument(
        "--journal-bytes", type=int, metavar="N", help="what its streams may take in the journal"
    )
    add.add_argument("--events-per-minute", type=int, metavar="N", help="events that it may report")
    commands.add_parser("list", parents=[place], allow_abbrev=False, help="show tenants and keys, no secrets")
    revoke = commands.add_parser("revoke", parents=[place], allow_abbrev=False, help="let a key open nothing")
    revoke.add_argument("id", help="the key's id: the twelve characters after seedance_")
    return parser


def run_key_command(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    entropy: Callable[[int], bytes] = secrets.token_bytes,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> int:
    """Runs the command.

    Args:
        arguments: What stands behind ``keys``.
        environment: The variables; None for the process's own.
        entropy: Gives so many random bytes.
        now: The present, for the date of a key.

    Returns:
        The exit status.

    Raises:
        StartupError: In one line, what can't be done.
    """
    given = _parser().parse_args(arguments)
    variables = os.environ if environment is None else environment
    path = given.keys or (Path(variables[KEYS_VARIABLE]) if variables.get(KEYS_VARIABLE) else None)
    if path is None:
        raise StartupError(f"--keys is needed: the path of the key file (or {KEYS_VARIABLE})")
    if given.command == "list":
        _list(path)
    elif given.command == "revoke":
        revoke_key(path, given.id)
    else:
        _add(path, given, entropy, now())
    return 0


def _add(path: Path, given: argparse.Namespace, entropy: Callable[[int], bytes], now: datetime) -> None:
    names = (
        "weight",
        "priority",
        "max_connections",
        "max_streams",
        "tokens_per_minute",
        "bytes_per_second",
        "journal_bytes",
        "events_per_minute",
    )
    settings = {name: value for name in names if (value := getattr(given, name)) is not None}
    try:
        read_tenant(given.tenant, settings)
    except ValueError as error:
        raise StartupError(str(error)) from None
    text, key = make_key(given.tenant, entropy, created=now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    written = {
        name: f'"{value}"' if isinstance(value, str) else str(value) for name, value in settings.items()
    }
    add_key(path, key, written)
    sys.stdout.write(f"{text}\n")
    sys.stderr.write(f"this key of tenant {key.tenant} is shown only now; revoke it by its id, {key.id}\n")


def _list(path: Path) -> None:
    file = read_key_file(path)
    for tenant in file.tenants.values():
        sys.stdout.write(f"{tenant.name}  {_describe(tenant)}\n")
        for key in file.keys.values():
            if key.tenant == tenant.name:
                state = "revoked" if key.revoked else "open"
                sys.stdout.write(f"  {key.id}  {state:7}  {key.created}\n")


def _describe(tenant: Tenant) -> str:
    parts = [f"weight {tenant.weight:g}", tenant.priority.value]
    limits = {
        "connections": tenant.max_connections,
        "streams": tenant.max_streams,
        "tokens/min": tenant.tokens_per_minute and f"{tenant.tokens_per_minute.base:g}",
        "bytes/s": tenant.bytes_per_second and f"{tenant.bytes_per_second.base:g}",
        "journal bytes": tenant.journal_bytes,
        "events/min": tenant.events_per_minute and f"{tenant.events_per_minute.base:g}",
    }
    parts += [f"{value} {name}" for name, value in limits.items() if value is not None]
    return ", ".join(parts)
