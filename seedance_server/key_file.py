"""The key file: tenants and their keys in TOML, read whole or not at all, and changed without losing a word.

    [tenants.acme]
    weight = 3

    [keys.0123456789ab]
    tenant = "acme"
    sha256 = "…"

Adding and revoking edit the text, so the operator's comments and order stay, and what comes out is read again
before it takes the file's place in one step: a crash leaves the old file or the new one. Two that change it
at once wait for each other.

It must not know who is connected.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from seedance_server.errors import KeyFileError
from seedance_server.keys import Key
from seedance_server.tenants import Tenant, read_tenant

__all__ = ["KeyFile", "add_key", "parse_key_file", "read_key_file", "revoke_key"]

_MAX_BYTES = 16 << 20
"""Some 100,000 keys; whatever is larger isn't a key file."""
_KEY_ID = re.compile(r"[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TITLE = """\
# Tenants and keys of seedance-server. Keys come and go by `seedance-server keys add|revoke`; tenants are
# edited here. The server notices a change by itself.
"""


@frozen
class KeyFile:
    """What a key file says.

    Attributes:
        tenants: By name.
        keys: By id, revoked ones too.
    """

    tenants: Mapping[str, Tenant]
    keys: Mapping[str, Key] = field(repr=False)


def parse_key_file(text: str) -> KeyFile:
    """Reads a key file's text.

    Raises:
        ValueError: In one line: where, and what is right.
    """
    try:
        top = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"isn't TOML: {error}") from None
    if surplus := sorted(top.keys() - {"tenants", "keys"}):
        raise ValueError(f"has a table {surplus[0]!r}; there are [tenants.NAME] and [keys.ID]")
    tenants = {name: read_tenant(name, table) for name, table in _tables(top, "tenants").items()}
    keys = {id_: _read_key(id_, table, tenants) for id_, table in _tables(top, "keys").items()}
    return KeyFile(MappingProxyType(tenants), MappingProxyType(keys))


def _tables(top: Mapping[str, Any], name: str) -> Mapping[str, Mapping[str, Any]]:
    tables = top.get(name, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError(f"must have tables in [{name}], as [{name}.acme]")
    return tables


def _read_key(id_: str, table: Mapping[str, Any], tenants: Mapping[str, Tenant]) -> Key:
    if _KEY_ID.fullmatch(id_) is None:
        raise ValueError(f"key {id_!r}: an id has twelve digits from 0 to f")
    if surplus := sorted(table.keys() - {"tenant", "sha256", "created", "revoked"}):
        raise ValueError(f"key {id_}: there is no setting {surplus[0]!r}")
    if table.get("tenant") not in tenants:
        raise ValueError(f"key {id_}: there is no [tenants.{table.get('tenant')}]")
    digest = table.get("sha256")
    if not isinstance(digest, str) or _SHA256.fullmatch(digest) is None:
        raise ValueError(f"key {id_}: sha256 must have 64 digits from 0 to f")
    if table.get("revoked", False) not in (True, False):
        raise ValueError(f"key {id_}: revoked must be true or false")
    created = str(table.get("created", ""))
    return Key(id_, table["tenant"], bytes.fromhex(digest), bool(table.get("revoked", False)), created)


def read_key_file(path: Path) -> KeyFile:
    """Reads a key file. Blocks on the disk.

    Raises:
        KeyFileError: It can't be read, or says something that it can't.
    """
    return _parse(path, _read(path))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise KeyFileError(path, f"is larger than {_MAX_BYTES >> 20} MiB")
        return data.decode()
    except OSError as error:
        raise KeyFileError(path, f"can't be read: {os.strerror(error.errno or 0)}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(path, "isn't UTF-8") from error


def _parse(path: Path, text: str) -> KeyFile:
    try:
        return parse_key_file(text)
    except ValueError as error:
        raise KeyFileError(path, str(error)) from None


def add_key(path: Path, key: Key, settings: Mapping[str, str] | None = None) -> None:
    """Adds a key, and its tenant if that is new; makes the file if there is none. Blocks on the disk.

    Args:
        path: The file.
        key: What to keep of the key.
        settings: Of a new tenant, as they stand in TOML.

    Raises:
        KeyFileError: The file can't be used or written; or there are settings for a tenant that it has.
    """

    def edit(text: str, before: KeyFile) -> str:
        parts = [text.rstrip("\n")] if text else [_TITLE.rstrip("\n")]
        if key.tenant not in before.tenants:
            lines = [f"{name} = {value}" for name, value in (settings or {}).items()]
            parts.append("\n".join([f"[tenants.{_quoted(key.tenant)}]", *lines]))
        elif settings:
            raise KeyFileError(path, f"has a tenant {key.tenant}: change its settings there")
        lines = [f"[keys.{key.id}]", f'tenant = "{key.tenant}"', f'sha256 = "{key.sha256.hex()}"']
        if key.created:
            lines.append(f"created = {key.created}")
        parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"

    _change(path, edit, lambda after: key.id in after.keys)


def _quoted(name: str) -> str:
    return f'"{name}"' if "." in name else name


def revoke_key(path: Path, key_id: str) -> None:
    """Marks a key as revoked; one that is already stays so. Blocks on the disk.

    Raises:
        KeyFileError: The file can't be used or written, or it has no such key.
    """

    def edit(text: str, before: KeyFile) -> str:
        if key_id not in before.keys:
            raise KeyFileError(path, f"has no key {key_id}")
        if before.keys[key_id].revoked:
            return text
        header = re.compile(rf"(?m)^\[keys\.{key_id}\][^\n]*\n")
        return header.sub(lambda match: f"{match[0]}revoked = true\n", text, count=1)

    _change(path, edit, lambda after: after.keys[key_id].revoked)


def _change(path: Path, edit: Callable[[str, KeyFile], str], is_done: Callable[[KeyFile], bool]) -> None:
    path = path.resolve()  # a link stays one
    try:
        with _locked(path.parent):
            text = _read(path) if path.exists() else ""
            changed = edit(text, _parse(path, text))
            try:
                done = is_done(parse_key_file(changed))
            except ValueError:
                done = False
            if not done:
                raise KeyFileError(path, "is written in a way that can't be changed here: edit it")
            _replace(path, changed)
    except OSError as error:
        raise KeyFileError(path, f"can't be written: {os.strerror(error.errno or 0)}") from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Puts a new file in place of the old one, with its rights; a new one is its user's alone."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if path.exists():
                status = path.stat()
                os.fchmod(descriptor, status.st_mode & 0o777)
                if os.geteuid() == 0:
                    os.fchown(descriptor, status.st_uid, status.st_gid)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
