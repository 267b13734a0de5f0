"""The blocking client in async clothes, so that a scenario written once runs on threads as well.

Nothing in it ever waits: a call has returned before it is awaited, so `run` need only step once.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from seedance_sdk.blocking import Conversation, Events, SeedanceClient, Stream

__all__ = ["Clothed", "run"]

T = TypeVar("T")

# What returns a value on every face, without ``await``.
PLAIN = {"cancel", "conversation", "detach", "events", "report", "statistics"}


class Clothed:
    """One object of the blocking face, with the async one's manners."""

    def __init__(self, bare: Any) -> None:
        self.bare = bare

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.bare, {"aclose": "close"}.get(name, name))
        if not callable(value):
            return value
        if name in PLAIN:
            return lambda *args, **options: clothe(value(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            return clothe(value(*args, **options))

        return call

    def __repr__(self) -> str:
        return repr(self.bare)

    def __aiter__(self) -> Clothed:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self.bare)
        except StopIteration:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        self.bare.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.bare.__exit__(*error)


def clothe(value: Any) -> Any:
    return Clothed(value) if isinstance(value, Conversation | Events | SeedanceClient | Stream) else value


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Runs what never waits."""
    try:
        scenario.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a blocking call cannot wait for an event loop")
