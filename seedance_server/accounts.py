"""What each tenant uses just now, against its limits.

One account a tenant, for as long as the process lives: a key file that is read again only changes the record
that it is held to. What is counted in is always counted out again; taking is never waited for here.

It must not know keys, connections or messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from seedance_server.tenants import LOCAL, Tenant

__all__ = ["Account", "Accounts"]


class Account:
    """One tenant's.

    Args:
        tenant: Its record.

    Attributes:
        tenant: As it was last read.
        connections: WebSockets open.
        requests: Requests from SUBMIT to their last frame.
    """

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.connections = 0
        self.requests = 0

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
    """

    def __init__(self, tenants: Iterable[Tenant] = (LOCAL,)) -> None:
        self._accounts: dict[str, Account] = {}
        self._journal_bytes: dict[str, int] = {}
        self.journal_bytes: Mapping[str, int] = MappingProxyType(self._journal_bytes)
        """What each tenant's streams may take in the journal, where it is its own; live."""
        self.update(tenants)

    def update(self, tenants: Iterable[Tenant]) -> None:
        """Holds tenants to these records from now on; who isn't among them keeps the one it has."""
        for tenant in tenants:
            if (account := self._accounts.get(tenant.name)) is None:
                self._accounts[tenant.name] = Account(tenant)
            else:
                account.tenant = tenant
            if tenant.journal_bytes is None:
                self._journal_bytes.pop(tenant.name, None)
            else:
                self._journal_bytes[tenant.name] = tenant.journal_bytes

    def of(self, name: str) -> Account:
        """A tenant's account; one that nobody wrote down has no limits of its own."""
        if (account := self._accounts.get(name)) is None:
            account = self._accounts[name] = Account(Tenant(name=name))
        return account

    def __iter__(self) -> Iterator[Account]:
        return iter(tuple(self._accounts.values()))
