"""Appends of several streams, where there is no commit to share."""

import trio

from seedance_server.journal.append import Append, append_each


async def test_each_has_an_end_of_its_own() -> None:
    """An error is told of the append that had it, whatever it is."""
    appended = []

    async def append(session_id, epoch, stream_id, frames):
        if stream_id == 2:
            raise LookupError("no")
        appended.append((session_id, epoch, stream_id, frames))
        return 1

    errors = await append_each(append, [Append("s", 1, number, ()) for number in (1, 2, 3)])
    assert [type(error) for error in errors] == [type(None), LookupError, type(None)]
    assert sorted(appended) == [("s", 1, 1, ()), ("s", 1, 3, ())]


async def test_frames_of_one_stream_go_in_as_they_stand(autojump_clock) -> None:
    """Whichever task the loop takes first: the later frames would be refused, being no next ones."""
    appended = []

    async def append(session_id, epoch, stream_id, frames):
        await trio.lowlevel.checkpoint()
        appended.append((stream_id, frames))
        return 1

    appends = [Append("s", 1, number % 2, (number,)) for number in range(20)]
    assert await append_each(append, appends) == [None] * 20
    for stream_id in (0, 1):
        assert [frames for of, frames in appended if of == stream_id] == [
            (number,) for number in range(stream_id, 20, 2)
        ]
