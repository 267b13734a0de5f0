"""What an answer is called: under its request's idempotency key it has one name for ever.

The name is that of the session which the answer's streams are in, so it is all that it takes to find them
again, in this process or the next. Without a key of the client's it is random. It isn't a secret: whoever
asks must also be the tenant whose it is.

It must not know where answers are kept.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from enum import Enum

from attrs import frozen

__all__ = ["AnswerId", "Kind"]

_HEX = 32
_NAME = re.compile(r"(chatcmpl|cmpl)-([0-9a-f]{32})")


class Kind(Enum):
    """Which of OpenAI's two shapes an answer has; the value is the prefix of its name."""

    CHAT = "chatcmpl"
    TEXT = "cmpl"


@frozen
class AnswerId:
    """An answer's name.

    Attributes:
        kind: Its shape.
        name: As clients see it.
    """

    kind: Kind
    name: str

    @classmethod
    def of(cls, kind: Kind, tenant: str, key: str | None) -> AnswerId:
        """The name of a request's answer.

        Args:
            kind: Its shape.
            tenant: Whose request it is.
            key: Its idempotency key, if its client made one.
        """
        if key is None:
            return cls(kind, f"{kind.value}-{secrets.token_hex(_HEX // 2)}")
        digest = hashlib.sha256(f"{kind.value}\0{tenant}\0{key}".encode()).hexdigest()
        return cls(kind, f"{kind.value}-{digest[:_HEX]}")

    @classmethod
    def parse(cls, text: str) -> AnswerId | None:
        """Reads a name; None if it isn't one."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(Kind(match[1]), text)

    @property
    def token(self) -> bytes:
        """What claims the session; its tenant is looked at beside it."""
        return hashlib.sha256(f"http\0{self.name}".encode()).digest()

    def key_of(self, index: int) -> bytes:
        """The idempotency key of the answer's choice number ``index``, as a SUBMIT has it."""
        return hashlib.sha256(f"{self.name}\0{index}".encode()).digest()
