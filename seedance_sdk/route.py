"""Where a client connects: to its endpoint, or where a server that leaves has sent it.

Another address is trusted with the API key since the server is, but never over a weaker connection. Where it
can't be reached the next attempt goes to the endpoint again. Must not know what a connection is for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import evolve

from seedance_sdk.endpoint import Endpoint, complete_url
from seedance_sdk.limits import Limits
from seedance_sdk.transport import Connector, Transport

__all__ = ["Route"]

_log = logging.getLogger("seedance_sdk")


class Route:
    """The way of one client.

    Args:
        endpoint: Where it begins.
        connector: Makes transports.
        limits: For the connector.
    """

    def __init__(self, endpoint: Endpoint, connector: Connector, limits: Limits) -> None:
        self._home = endpoint
        self._present = endpoint
        self._connector = connector
        self._limits = limits

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Transport]:
        """Connects to wherever it leads now.

        Raises:
            ConnectionFailed: No connection could be made; the next one is tried at the endpoint again.
        """
        endpoint = self._present
        reached = False
        try:
            async with self._connector(endpoint, self._limits) as transport:
                reached = True
                yield transport
        finally:
            if not reached and self._present is endpoint:
                self._present = self._home

    def redirect(self, url: str) -> None:
        """The server leaves and says where to go instead; an address that can't be used is passed over."""
        try:
            present = evolve(self._home, url=complete_url(url))
        except ValueError as error:
            _log.warning("the server leaves, and its other address can't be used: %s", error)
            return
        if self._home.secure and not present.secure:
            _log.warning("the server leaves, and its other address is passed over: it is not encrypted")
            return
        self._present = present
