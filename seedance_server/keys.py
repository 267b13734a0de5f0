"""API keys: how they are made, what is kept of them, and how one that is shown is looked up. Pure.

A key is a public id and a 256-bit secret in one word. Kept is only its SHA-256: a secret of that size can't
be searched for, so nothing slower is needed. Looking up does the same work whether the id is unknown, the key
revoked or the secret wrong, and gives the same answer.

It must not know files, addresses or HTTP.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable

from attrs import field, frozen

__all__ = ["API_KEY_ID", "Key", "KeyRing", "key_id", "make_key"]

_FORM = re.compile(r"seedance_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID_BYTES = 6
_SECRET_BYTES = 32
_NO_HASH = bytes(32)
"""What an unknown key is compared with: no text is known to have this hash."""
API_KEY_ID = ""
"""The id of the key that ``--api-key`` gives."""


@frozen
class Key:
    """What is kept of a key.

    Attributes:
        id: Its public part.
        tenant: Whose it is.
        sha256: Of the whole key as its owner has it.
        revoked: It opens nothing any more.
        created: When it was made, as text; for people.
    """

    id: str
    tenant: str
    sha256: bytes = field(repr=False)
    revoked: bool = False
    created: str = ""


def make_key(tenant: str, entropy: Callable[[int], bytes], created: str = "") -> tuple[str, Key]:
    """Makes a key.

    Args:
        tenant: Whose it will be.
        entropy: Gives so many random bytes.
        created: When, for people.

    Returns:
        The key's text, which nobody can tell later, and what to keep of it.
    """
    id_ = entropy(_ID_BYTES).hex()
    secret = base64.urlsafe_b64encode(entropy(_SECRET_BYTES)).decode().rstrip("=")
    text = f"seedance_{id_}_{secret}"
    return text, Key(id_, tenant, _hash(text), created=created)


def key_id(text: str) -> str | None:
    """The public part of what is shown as a key; None if it hasn't the form of one."""
    match = _FORM.fullmatch(text)
    return None if match is None else match[1]


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class KeyRing:
    """The keys that open.

    Args:
        keys: Those of the key file, revoked ones too.
        api_key: The operator's one key, of any form.
        api_key_tenant: Whose that one is.
    """

    def __init__(
        self, keys: Iterable[Key] = (), api_key: str | None = None, api_key_tenant: str = ""
    ) -> None:
        self._keys = {key.id: key for key in keys}
        self._api_key = Key(API_KEY_ID, api_key_tenant, _NO_HASH if api_key is None else _hash(api_key))
        self._is_empty = api_key is None and not self._keys

    @property
    def is_empty(self) -> bool:
        """Whether there is no key at all, revoked or not."""
        return self._is_empty

    def find(self, text: str) -> Key | None:
        """The key with this text; None, after the same work, if there is none that opens."""
        shown = _hash(text)
        known = self._keys.get(key_id(text) or API_KEY_ID)
        is_known = hmac.compare_digest(shown, _NO_HASH if known is None else known.sha256)
        is_api_key = hmac.compare_digest(shown, self._api_key.sha256)
        if is_api_key:
            return self._api_key
        return known if is_known and known is not None and not known.revoked else None

    def holds(self, key: Key) -> bool:
        """Whether a key that was found once still opens."""
        if key.id == API_KEY_ID:
            return key == self._api_key
        known = self._keys.get(key.id)
        return known is not None and not known.revoked and known.sha256 == key.sha256
