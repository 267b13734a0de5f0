"""An object that a client sent, taken apart field by field; what is left in the end nobody knows.

Null is the same as absent. Text must be text that can be written down: lone surrogates are refused here.

It must not know which fields there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seedance_server.http.refusal import Refusal, http_refusal
from seedance_wire.messages import ErrorCode

__all__ = ["Fields"]

_INT64_MAX = 2**63 - 1


class Fields:
    """Takes one apart.

    Args:
        value: As JSON gave it.
        path: Where it stands, for errors; nothing for the body itself.

    Raises:
        Refusal: It is no object. Every method raises one for a field that isn't as it must be.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        self._path = path
        if not isinstance(value, dict):
            raise Refusal(
                status=400, message=f"{path or 'the body'} must be a JSON object", param=path or None
            )
        self._left = dict(value)

    def take(self, name: str) -> Any:
        """The field as it is; None if it is absent."""
        return self._left.pop(name, None)

    def flag(self, name: str) -> bool:
        """A truth value, false if absent."""
        value = self.take(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong(name, "must be true or false")

    def integer(self, name: str, *, default: Any = None, least: int) -> Any:
        """A whole number, ``default`` if absent."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INT64_MAX:
            raise self.wrong(name, f"must be a whole number, at least {least}")
        return value

    def text(self, name: str) -> str | None:
        """A text."""
        value = self.take(name)
        return None if value is None else self.as_text(name, value)

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of a few words."""
        value = self.take(name)
        if value is None or value in choices:
            return value  # type: ignore[no-any-return]  # one of the words
        raise self.wrong(name, f"must be one of {', '.join(choices)}")

    def items(self, name: str) -> list[Any]:
        """A list, empty if absent."""
        return self.as_items(name, self.take(name))

    def as_text(self, name: str, value: Any) -> str:
        """A value that must be text."""
        try:
            if isinstance(value, str) and value.encode() is not None:
                return value
        except UnicodeEncodeError:
            raise self.wrong(name, "holds half of a character (a lone surrogate)") from None
        raise self.wrong(name, "must be text")

    def as_items(self, name: str, value: Any) -> list[Any]:
        """A value that must be a list; None is an empty one."""
        if value is None or isinstance(value, list):
            return value or []
        raise self.wrong(name, "must be a list")

    def refuse_others(self) -> None:
        """What wasn't taken isn't known."""
        for name, value in self._left.items():
            if value is not None:
                raise Refusal(
                    status=400,
                    message=f"unknown parameter: {self._at(name)[:80]}",
                    param=self._at(name)[:80],
                    code="unknown_parameter",
                )

    def wrong(self, name: str, reason: str) -> Refusal:
        """A field that isn't as it must be."""
        return http_refusal(ErrorCode.INVALID_REQUEST, f"{self._at(name)} {reason}", param=self._at(name))

    def unsupported(self, name: str, reason: str = "isn't offered by this server with this value") -> Refusal:
        """A field that asks for what there isn't."""
        return http_refusal(ErrorCode.UNSUPPORTED, f"{self._at(name)}: {reason}", param=self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name
