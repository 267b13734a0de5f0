"""Where to connect and as whom: what a user gave, checked and completed.

Refuses early what would fail late or leak: credentials in a URL, a key that would break a header. Connects
nothing.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from importlib.metadata import version
from typing import Self

from attrs import evolve, field, frozen

from seedance_wire.codec import SUBPROTOCOLS

__all__ = ["DEFAULT_URL", "SESSION_HEADER", "Endpoint", "complete_url", "make_endpoint"]

DEFAULT_URL = "ws://localhost:8080/v1/chat"
DEFAULT_PATH = "/v1/chat"
SESSION_HEADER = "Seedance-Session"
"""Names the session that a client comes back to; nothing but a hint, for proxies."""
_HEADER_VALUE = re.compile(r"[!-~]{1,128}")
_PORTS = {"ws": 80, "wss": 443}


def complete_url(url: str) -> str:
    """Checks the address of a server and adds what may be left out.

    Raises:
        ValueError: It is not a WebSocket URL, or holds credentials.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"the URL must look like ws://host:8080/v1/chat or wss://…, not {url!r}")
    if parts.username or parts.password:
        raise ValueError("the URL must not hold credentials; give api_key")
    _ = parts.port  # raises ValueError where it is no number
    try:
        parts.hostname.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"the URL's host {parts.hostname!r} can't be looked up: {error}") from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("the URL must be printable ASCII; encode other characters")
    path = parts.path if parts.path.strip("/") else DEFAULT_PATH
    return parts._replace(path=path, fragment="").geturl()


@frozen(kw_only=True)
class Endpoint:
    """Where to connect and as whom.

    Attributes:
        url: ``ws://`` or ``wss://``, without credentials; a missing path is ``/v1/chat``.
        subprotocol: The encoding to ask for.
        headers: Sent with the upgrade.
    """

    url: str
    subprotocol: str
    headers: Mapping[str, str] = field(repr=False)  # holds the key

    @classmethod
    def of(
        cls, url: str, *, subprotocol: str, api_key: str | None, user_agent: str, canary: bool = False
    ) -> Self:
        """Checks and completes what a user gave.

        Raises:
            ValueError: The URL is not a WebSocket URL or holds credentials, the key can't be a header, or
                there is no such subprotocol.
        """
        if subprotocol not in SUBPROTOCOLS:
            raise ValueError(f"subprotocol must be one of {', '.join(SUBPROTOCOLS)}, not {subprotocol!r}")
        completed = complete_url(url)
        headers = {"User-Agent": user_agent}
        if canary:
            headers["X-Canary"] = "true"
        if api_key is not None:
            if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
                raise ValueError("the API key must be printable ASCII without spaces")
            headers["Authorization"] = f"Bearer {api_key}"
        return cls(url=completed, subprotocol=subprotocol, headers=headers)

    def in_session(self, session_id: str | None) -> Self:
        """The same, for a client that comes back to a session: proxies may bring it to where that is."""
        if session_id is None or not _HEADER_VALUE.fullmatch(session_id):
            return self
        return evolve(self, headers={**self.headers, SESSION_HEADER: session_id})

    @property
    def secure(self) -> bool:
        """Whether the connection is encrypted."""
        return urllib.parse.urlsplit(self.url).scheme == "wss"

    @property
    def host(self) -> str:
        """Name or address to connect to."""
        return urllib.parse.urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """TCP port; 80 or 443 where the URL names none."""
        parts = urllib.parse.urlsplit(self.url)
        return parts.port or _PORTS[parts.scheme]

    @property
    def authority(self) -> str:
        """What the ``Host`` header says: brackets around IPv6, no default port."""
        parts = urllib.parse.urlsplit(self.url)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[parts.scheme] else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """Path and query."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path


def make_endpoint(
    url: str | None, api_key: str | None, subprotocol: str, *, canary: bool = False
) -> Endpoint:
    """Completes what a caller gave from the environment: ``SEEDANCE_URL`` and ``SEEDANCE_API_KEY``.

    Raises:
        ValueError: The URL or the key is malformed, or there is no such subprotocol.
    """
    return Endpoint.of(
        url if url is not None else os.environ.get("SEEDANCE_URL") or DEFAULT_URL,
        subprotocol=subprotocol,
        api_key=api_key if api_key is not None else os.environ.get("SEEDANCE_API_KEY") or None,
        user_agent=f"seedance-sdk-python/{version('seedance-sdk')}",
        canary=canary,
    )
