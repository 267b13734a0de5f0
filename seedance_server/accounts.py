"""What each tenant uses just now, against its limits.

One account a tenant, for as long as the process lives: a key file that is read again only changes the record
that it is held to. What is counted in is always counted out again; nothing is waited for here.

It must not know keys, connections or messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import trio

from seedance_server.quota import Load, Quota
from seedance_server.tenants import LOCAL, Tenant

__all__ = ["Account", "Accounts"]


class Account:
    """One tenant's.

    Args:
        tenant: Its record.
        clock: Seconds, monotonic.

    Attributes:
        connections: WebSockets open.
        requests: Requests from SUBMIT to their last frame.
        waiting: Those of them that never had their turn in the engine.
        prompt_tokens: Of its requests that had their turn, since the start.
        generated_tokens: Committed of its answers, since the start.
        sent_bytes: Sent to it, since the start.
    """

    def __init__(self, tenant: Tenant, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._tenant = tenant
        self._tokens = Quota(period_s=60.0)
        self._bandwidth = Quota(period_s=1.0)
        self._events = Quota(period_s=60.0)
        self.connections = 0
        self.requests = 0
        self.waiting = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.sent_bytes = 0
        self.hold_to(tenant)

    @property
    def tenant(self) -> Tenant:
        """Its record as it was last read."""
        return self._tenant

    @property
    def quotas(self) -> tuple[float | None, float | None]:
        """Tokens a minute and bytes a second that it may have just now; None for no limit."""
        return self._tokens.current, self._bandwidth.current

    def hold_to(self, tenant: Tenant) -> None:
        """Its record has changed."""
        self._tenant = tenant
        now_s = self._clock()
        self._tokens.hold_to(tenant.tokens_per_minute, now_s)
        self._bandwidth.hold_to(tenant.bytes_per_second, now_s)
        self._events.hold_to(tenant.events_per_minute, now_s)

    def note_load(self, load: Load) -> None:
        """The machine's load has changed, and with it what it may take."""
        now_s = self._clock()
        self._tokens.note_load(load, now_s)
        self._bandwidth.note_load(load, now_s)
        self._events.note_load(load, now_s)

    def take_tokens(self, amount: int) -> float:
        """Reserves tokens; returns 0, or the seconds until it has so many, and nothing was reserved."""
        return self._tokens.take(amount, self._clock())

    def settle_tokens(self, reserved: int, used: int) -> None:
        """What became of tokens that were reserved: the rest goes back, what is missing is owed."""
        self._tokens.charge(used - reserved, self._clock())

    def take_events(self, amount: int) -> float:
        """Takes reported events; returns 0, or the seconds until it may report so many, and took none."""
        return self._events.take(amount, self._clock())

    def give_events_back(self, amount: int) -> None:
        """Events that were taken and then not kept."""
        self._events.charge(-amount, self._clock())

    @property
    def burst_bytes(self) -> float:
        """What should be sent to it at once: a quarter of a second's, so that what it gets comes evenly."""
        current = self._bandwidth.current
        return math.inf if current is None else current / 4

    def charge_bytes(self, amount: int) -> None:
        """So much was sent to it."""
        self.sent_bytes += amount
        self._bandwidth.charge(amount, self._clock())

    def bandwidth_wait_s(self) -> float:
        """Seconds until it may be sent more."""
        return self._bandwidth.debt_s(self._clock())

    @property
    def has_room_for_connection(self) -> bool:
        """Whether it may open one more."""
        limit = self.tenant.max_connections
        return limit is None or self.connections < limit

    @property
    def has_room_for_request(self) -> bool:
        """Whether it may have one more request."""
        limit = self.tenant.max_streams
        return limit is None or self.requests < limit


class Accounts:
    """All tenants'.

    Args:
        tenants: Their records.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, tenants: Iterable[Tenant] = (LOCAL,), clock: Callable[[], float] = trio.current_time
    ) -> None:
        self._clock = clock
        self._load = Load()
        self._accounts: dict[str, Account] = {}
        self._journal_bytes: dict[str, int] = {}
        self.journal_bytes: Mapping[str, int] = MappingProxyType(self._journal_bytes)
        """What each tenant's streams may take in the journal, where it is its own; live."""
        self.update(tenants)

    def update(self, tenants: Iterable[Tenant]) -> None:
        """Holds tenants to these records from now on; who isn't among them keeps the one it has."""
        for tenant in tenants:
            if (account := self._accounts.get(tenant.name)) is None:
                self._open(tenant)
            else:
                account.hold_to(tenant)
            if tenant.journal_bytes is None:
                self._journal_bytes.pop(tenant.name, None)
            else:
                self._journal_bytes[tenant.name] = tenant.journal_bytes

    def of(self, name: str) -> Account:
        """A tenant's account; one that nobody wrote down has no limits of its own."""
        if (account := self._accounts.get(name)) is None:
            account = self._open(Tenant(name=name))
        return account

    def _open(self, tenant: Tenant) -> Account:
        account = self._accounts[tenant.name] = Account(tenant, self._clock)
        account.note_load(self._load)
        return account

    def note_load(self, load: Load) -> None:
        """The machine's load, for everybody's quotas."""
        self._load = load
        for account in self:
            account.note_load(load)

    def __iter__(self) -> Iterator[Account]:
        return iter(tuple(self._accounts.values()))
