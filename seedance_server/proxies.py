"""Whose word counts on where a request comes from: proxies that the operator named.

What such a proxy says in ``X-Forwarded-For`` is believed from the right on, as far as it was said by proxies
that are trusted themselves; what anybody else says there is nothing. Pure.

It must not know what an address is used for.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TypeAlias

__all__ = ["Network", "TrustedProxies", "parse_network"]

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_network(text: str) -> Network:
    """Reads ``192.0.2.7`` or ``192.0.2.0/24``.

    Raises:
        ValueError: It is neither.
    """
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError:
        raise ValueError(f"must be an address or a network such as 192.0.2.0/24, not {text!r}") from None


class TrustedProxies:
    """Proxies that are believed.

    Args:
        networks: Where they are.
    """

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    def trusts(self, address: str) -> bool:
        """Whether a connection from there comes from one of them."""
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        return any(ip in network for network in self._networks if network.version == ip.version)

    def client_of(self, address: str, forwarded: Sequence[str]) -> str:
        """Where a request really comes from.

        Args:
            address: Where its connection comes from.
            forwarded: The values of its ``X-Forwarded-For`` headers.
        """
        said = [part.strip() for part in ",".join(forwarded).split(",")]
        while self.trusts(address) and said:
            try:
                address = str(ipaddress.ip_address(said.pop()))
            except ValueError:
                break  # nothing that is left of it was said by somebody who is trusted
        return address
