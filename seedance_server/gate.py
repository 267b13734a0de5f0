"""Who may come in: a key that is shown becomes the tenant whose it is, or an HTTP answer that says no more.

Unknown, revoked and wrong keys get one answer after the same work. Failures are counted by address and by
address and key id: whoever goes on failing gets 429 instead, and a key id that is being guessed at from an
address stays shut to that address for a while, even to the right key. The key file is looked at every second
and on SIGHUP; one that can't be used changes nothing and is complained about once. A key never reaches the
log. Whoever may come in gets a ticket for the asking, with which a browser comes in through the other door.

It must not know WebSockets or what is done behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import trio
from attrs import frozen

from seedance_server.accounts import Accounts
from seedance_server.errors import KeyFileError
from seedance_server.guesses import GuessLimiter
from seedance_server.key_file import KeyFile, read_key_file
from seedance_server.keys import Key, KeyRing, key_id
from seedance_server.lobby import address_group
from seedance_server.tenants import LOCAL, Tenant
from seedance_server.tickets import Tickets
from seedance_server.upgrade import HttpAnswer

__all__ = ["Gate", "Pass"]

_log = structlog.get_logger(__name__)

RELOAD_INTERVAL_S = 1.0
"""Between two looks at the key file: a revoked key stops opening within two."""

_WRONG = HttpAnswer(401, "send the key as Authorization: Bearer", (("WWW-Authenticate", "Bearer"),))
_STALE = HttpAnswer(401, "this ticket opens nothing: fetch another one", (("WWW-Authenticate", "Bearer"),))
"""Not counted as a guess: nobody guesses 256 bits, and a slow page is no attack."""


@frozen
class Pass:
    """What a connection was let in with.

    Attributes:
        tenant: Name of the tenant.
        key: Its key; None where none is needed.
    """

    tenant: str
    key: Key | None


class Gate:
    """Lets connections in.

    Args:
        api_key: The operator's one key, if there is one.
        path: The key file, if there is one.
        clock: Seconds, monotonic.
        on_change: Called after other keys or tenants have been read.

    Attributes:
        accounts: Of all tenants.

    Raises:
        KeyFileError: The key file can't be used. Reading it blocks on the disk.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        path: Path | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._api_key = api_key
        self._path = path
        self._clock = clock
        self._guesses = GuessLimiter()
        self._tickets = Tickets[Pass](clock=clock)
        self._stamp: object = None
        self._complaint: str | None = None
        self.accounts = Accounts(clock=clock)
        self.on_change: Callable[[], None] = lambda: None
        if path is None:
            self._ring = self._make_ring({})
        else:
            self._stamp = _stamp(path)
            self._take(read_key_file(path))

    @property
    def wants_key(self) -> bool:
        """Whether nobody comes in without one."""
        return self._path is not None or self._api_key is not None

    def _make_ring(self, keys: Mapping[str, Key]) -> KeyRing:
        return KeyRing(keys.values(), self._api_key, LOCAL.name)

    def _take(self, file: KeyFile) -> None:
        self._ring = self._make_ring(file.keys)
        tenants: dict[str, Tenant] = dict(file.tenants)
        if self._api_key is not None:
            tenants.setdefault(LOCAL.name, LOCAL)
        self.accounts.update(tenants.values())

    def admit(
        self, authorization: str | None, address: str, *, ticket: str | None = None
    ) -> Pass | HttpAnswer:
        """Looks at what a request shows.

        Args:
            authorization: Value of its Authorization header, if it is there.
            address: Whom it comes from.
            ticket: Of `issue_ticket`, if it has one; then the header isn't looked at.
        """
        if not self.wants_key:
            return Pass(LOCAL.name, None)
        if ticket is not None:
            one = self._tickets.redeem(ticket)
            return one if one is not None and self.holds(one) else _STALE
        scheme, _, text = (authorization or "").partition(" ")
        text = text.strip()
        key = self._ring.find(text)
        if scheme.lower() != "bearer":
            key = None
        now_s = self._clock()
        group = address_group(address) or "loopback"
        pair = (group, key_id(text))
        wait_s = self._guesses.blocked_s(pair, now_s)
        if key is not None and wait_s == 0:
            self._guesses.note_success(pair)
            return Pass(key.tenant, key)
        if key is None:
            wait_s = max(self._guesses.note_failure(pair, now_s), self._guesses.note_failure(group, now_s))
        if wait_s == 0:
            return _WRONG
        retry_after = ("Retry-After", str(math.ceil(wait_s)))
        return HttpAnswer(429, "too many wrong keys from this address", (retry_after,))

    def issue_ticket(self, one: Pass) -> str:
        """Returns a ticket that lets one connection in with what ``one`` was let in with."""
        return self._tickets.issue(one.tenant, one)

    def holds(self, one: Pass) -> bool:
        """Whether what let a connection in still would."""
        return one.key is None or self._ring.holds(one.key)

    async def run(self) -> None:
        """Looks at the key file for ever."""
        while self._path is not None:
            await trio.sleep(RELOAD_INTERVAL_S)
            await self.reload()

    async def reload(self, *, always: bool = False) -> None:
        """Reads the key file again, if it looks changed or ``always``; a bad one changes nothing.

        If cancelled, nothing has changed.
        """
        path = self._path
        if path is None:
            return
        try:
            stamp = await trio.to_thread.run_sync(_stamp, path)
            if stamp == self._stamp and not always:
                return
            file = await trio.to_thread.run_sync(read_key_file, path)
        except KeyFileError as error:
            if always or str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("the key file can't be used: the keys stay as they were", reason=str(error))
            return
        self._stamp, self._complaint = stamp, None
        self._take(file)
        _log.info("key file read", tenants=len(file.tenants), keys=len(file.keys))
        self.on_change()


def _stamp(path: Path) -> object:
    """What changes whenever a file is replaced or written."""
    try:
        status = path.stat()
    except OSError as error:
        raise KeyFileError(path, f"can't be read: {error.strerror}") from error
    return (status.st_mtime_ns, status.st_size, status.st_ino)
