"""Appends of several streams, where there is no commit to share."""

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
