"""Pieces become frames again: the reader's half of what `frame_writer.py` leaves out.

For each stream of which a frame came with its numbers, the next id is known as long as nothing is missing,
whether or not its frames are applied. The number of an envelope tells whether one was repeated, which is then
dropped whole, or lost: then no next id is known any more, nor the streams of an envelope that does not name
them. RESUMED, which every stream now needs, makes the writer say both again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import frozen

from .envelope import CodedDelta, Pieces
from .errors import DecodeError
from .messages import Delta, Error, Flush, Frame

__all__ = ["Missing", "PieceReader"]

_NUMBERS = 128
_MOST_LOST = 64
"""An envelope with a number less far ahead lies behind lost ones; one farther ahead is an old one again."""


@frozen
class Missing:
    """Something was lost: of this stream, or of any stream where there is None."""

    stream_id: int | None


class PieceReader:
    """The pieces of one connection.

    Args:
        epoch: Of WELCOME.
        offset_of: Returns the UTF-8 bytes applied of a stream by now, which is where its next piece begins.

    Attributes:
        repeated: Frames in envelopes that came again, and were dropped.
    """

    def __init__(self, epoch: int, offset_of: Callable[[int], int]) -> None:
        self.repeated = 0
        self._epoch = epoch
        self._offset_of = offset_of
        self._number = 0
        self._stream_ids: tuple[int, ...] | None = ()  # of the last list without a 0; None: it was lost
        self._next_ids: dict[int, int] = {}

    def forget(self, stream_id: int) -> None:
        """The next frame of a stream has its numbers."""
        self._next_ids.pop(stream_id, None)

    def note(self, frame: Frame | CodedDelta) -> None:
        """Takes a frame that came with its numbers: the next of its stream has that behind it."""
        if isinstance(frame, Error) or (isinstance(frame, Flush) and frame.final is not None):
            self._next_ids.pop(frame.stream_id, None)
        else:
            # One that comes late does not take the next one back.
            self._next_ids[frame.stream_id] = max(frame.id + 1, self._next_ids.get(frame.stream_id, 0))

    def frames(self, pieces: Pieces) -> Iterator[Frame | CodedDelta | Missing]:
        """Gives out the frames of an envelope, in order; each is to be taken before the next is asked for.

        Raises:
            DecodeError: Its lists contradict each other, or a text is not UTF-8.
        """
        ahead = (pieces.number - self._number) % _NUMBERS
        if ahead == 0 or ahead > _MOST_LOST:
            self.repeated += len(pieces.stream_ids or self._stream_ids or ())
            return
        self._number = pieces.number
        if ahead > 1:
            self._next_ids, self._stream_ids = {}, None
            yield Missing(None)
        stream_ids = pieces.stream_ids or self._stream_ids
        if stream_ids is None:
            return
        if 0 not in stream_ids:
            self._stream_ids = stream_ids
        yield from self._unfold(pieces, stream_ids)

    def _unfold(self, pieces: Pieces, stream_ids: tuple[int, ...]) -> Iterator[Frame | CodedDelta | Missing]:
        count = len(stream_ids) - len(pieces.frames)
        sizes = pieces.sizes or ((2 * len(pieces.data),) if count == 1 else ())
        token_counts = pieces.token_counts or (1,) * count
        fits = len(sizes) == len(token_counts) == count == sum(map(bool, stream_ids))
        if not fits or not stream_ids or (not sizes and pieces.data):
            raise DecodeError("pieces without a stream, a size, a token count or data, or with too many")
        frames, rest = iter(pieces.frames), iter(zip(sizes, token_counts, strict=True))
        start = 0
        for stream_id in stream_ids:
            if not stream_id:
                frame = next(frames)
                self.note(frame)
                yield frame
                continue
            size, token_count = next(rest)
            data = pieces.data[start : start + (size >> 1)]
            start += size >> 1
            yield self._piece(stream_id, data, size & 1, token_count)

    def _piece(
        self, stream_id: int, data: bytes, is_difference: int, token_count: int
    ) -> Delta | CodedDelta | Missing:
        id_ = self._next_ids.get(stream_id)
        if id_ is None:
            return Missing(stream_id)
        self._next_ids[stream_id] = id_ + 1
        epoch, offset = self._epoch, self._offset_of(stream_id)
        if is_difference:
            return CodedDelta(
                stream_id=stream_id,
                id=id_,
                epoch=epoch,
                offset=offset,
                difference=data,
                token_count=token_count,
            )
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise DecodeError("the text of a piece is not UTF-8") from None
        return Delta(
            stream_id=stream_id, id=id_, epoch=epoch, offset=offset, text=text, token_count=token_count
        )
