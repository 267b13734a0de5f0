"""Which journal a configuration asks for, and where its file lies.

The default place is the user's own: what a server writes there is nobody else's business, so the directory is
made for its user alone. A file that can't be used is said before the model is loaded.

It must not know sessions or streams.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.journal.interface import Journal
from seedance_server.journal.limits import JournalLimits
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal.sqlite import SqliteJournal

__all__ = ["default_journal_path", "journal_limits", "make_journal"]


def default_journal_path(environment: Mapping[str, str] | None = None) -> Path:
    """``seedance/journal.db`` in the user's state directory, as the XDG base directories have it."""
    variables = os.environ if environment is None else environment
    state = variables.get("XDG_STATE_HOME", "")
    # A relative path is to be ignored, says that specification.
    base = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "seedance" / "journal.db"


def journal_limits(config: Config, tenants: Mapping[str, int] = MappingProxyType({})) -> JournalLimits:
    """The journal's bounds under these settings, and of tenants that have their own."""
    return JournalLimits(
        retention_s=config.retention_s,
        idempotency_s=config.idempotency_s,
        session_s=config.resume_window_s,
        tenant_bytes=config.journal_quota_bytes,
        bytes_of_tenants=tenants,
        soft_free_bytes=config.journal_reserve_bytes,
        # Messages are processed out of order while a request waits for its prompt's encoding.
        event_bytes=config.events_quota_bytes,
        early_messages=config.max_streams + config.message_burst,
    )


def make_journal(config: Config, tenants: Mapping[str, int] = MappingProxyType({})) -> Journal:
    """The journal of a configuration, not yet open; its directory exists.

    Args:
        config: All settings.
        tenants: What the streams of a tenant may take, where that is its own; looked at again each time.

    Raises:
        ConfigError: There can't be one there.
    """
    limits = journal_limits(config, tenants)
    if config.durability == "none":
        return MemoryJournal(limits)
    path = config.journal_path or default_journal_path()
    try:
        if config.journal_path is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not path.parent.is_dir():
            raise ConfigError("--journal", f"must lie in a directory that exists, not in {path.parent}")
        if path.is_dir():
            raise ConfigError("--journal", f"must be a file; {path} is a directory")
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError("--journal", f"can't be made in {path.parent}: {reason}") from error
    return SqliteJournal(path, limits)
