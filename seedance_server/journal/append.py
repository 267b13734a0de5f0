"""Frames of several streams that are appended at once, each stream's on its own terms.

It must not know storage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import trio
from attrs import frozen

from seedance_server.journal.records import FrameRecord

__all__ = ["Append", "append_each"]


@frozen
class Append:
    """What `Journal.append` is told, for frames behind which others follow."""

    session_id: str
    epoch: int
    stream_id: int
    frames: Sequence[FrameRecord]


async def append_each(
    append: Callable[[str, int, int, Sequence[FrameRecord]], Awaitable[int]], appends: Sequence[Append]
) -> list[Exception | None]:
    """Makes of `Journal.append` a `Journal.append_all`, where a commit costs nothing that could be shared.

    A stream's frames go in as they stand here; streams don't wait for each other.
    """
    errors: list[Exception | None] = [None] * len(appends)
    of_streams: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for index, each in enumerate(appends):
        of_streams[each.session_id, each.stream_id].append(index)

    async def one_stream(indices: Sequence[int]) -> None:
        for index in indices:
            each = appends[index]
            try:
                await append(each.session_id, each.epoch, each.stream_id, each.frames)
            except Exception as error:  # noqa: BLE001 - for whoever asked for this one
                errors[index] = error

    async with trio.open_nursery() as nursery:
        for indices in of_streams.values():
            nursery.start_soon(one_stream, indices)
    return errors
