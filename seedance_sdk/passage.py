"""How an async face reaches the trio loop in which its client's sessions live.

On trio that is the loop it runs in, on asyncio a background thread. Every face says the same to both, so
nothing above this knows which library runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import sniffio

from seedance_sdk.errors import UnsupportedEventLoop
from seedance_sdk.portal import Portal
from seedance_sdk.sessions import Sessions

__all__ = ["AsyncioPassage", "Passage", "TrioPassage", "running_library"]

T = TypeVar("T")


class Passage(Protocol):
    """Calls from an async face into trio."""

    def call(
        self, function: Callable[[], Awaitable[T]], *, undo: Callable[[T], object] | None = None
    ) -> Awaitable[T]:
        """Awaits ``function()``, when it is awaited itself.

        Args:
            function: What to do, on trio.
            undo: Called with the result where the caller was cancelled too late and does not get it.

        If cancelled, it is cancelled, and has ended.
        """

    def read(self, function: Callable[[], T]) -> T:
        """Returns ``function()``, called where nothing else happens to sessions meanwhile."""


class TrioPassage:
    """There is none: the caller is where the sessions are."""

    def call(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        undo: Callable[[T], object] | None = None,  # noqa: ARG002 - who is cancelled here gets no result
    ) -> Awaitable[T]:
        """Returns ``function()``; see `Passage`."""
        return function()

    def read(self, function: Callable[[], T]) -> T:
        """Returns ``function()``; see `Passage`."""
        return function()


class AsyncioPassage:
    """Through a portal, which carries each call over and back while asyncio's loop goes on.

    Args:
        portal: Leads to the sessions.
    """

    def __init__(self, portal: Portal[Sessions]) -> None:
        self._portal = portal

    async def call(
        self, function: Callable[[], Awaitable[T]], *, undo: Callable[[T], object] | None = None
    ) -> T:
        """Awaits ``function()`` in the background; see `Passage`."""
        return await self._portal.call_from_asyncio(lambda _: function(), undo=undo)

    def read(self, function: Callable[[], T]) -> T:
        """Returns ``function()``, called in the background; see `Passage`."""
        return self._portal.read(function)


def running_library() -> str:
    """Returns "trio" or "asyncio".

    Raises:
        UnsupportedEventLoop: Neither runs here.
    """
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        library = "no async library that is known"
    if library not in {"asyncio", "trio"}:
        raise UnsupportedEventLoop(
            f"AsyncSeedanceClient runs on trio and asyncio, and this is {library}: "
            "use SeedanceClient in a thread"
        )
    return library
