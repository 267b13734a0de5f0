"""How the frames that a server sends travel: each with its numbers, or as pieces without them.

What a client can derive is left out where both ends can read `Pieces`: a DELTA is the next of its stream once
a frame of it was sent with its numbers on this connection, because `state.py` lets nothing else through. The
text of a DELTA goes as differences where that takes fewer bytes. What is noted here follows what is sent, so
a draft counts for nothing until it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from .delta import difference
from .envelope import CodedDelta, Outgoing, Pieces
from .errors import LocalProtocolError
from .messages import Delta, Flush, Frame

__all__ = ["FrameDraft", "FrameWriter"]

_LONE_SIZE_BYTES = 3
"""What it takes to say of a lone piece that it is differences; of several the sizes are said anyway."""


@define
class FrameDraft:
    """Frames as they will travel.

    Attributes:
        outgoing: What the codec is to write.
        text_bytes: UTF-8 bytes of the text of each frame.
        differences: How many texts travel as differences.
    """

    outgoing: list[Outgoing] = field(factory=list)
    text_bytes: list[int] = field(factory=list)
    differences: int = 0
    contexts: dict[int, int | None] = field(factory=dict)  # of the streams that go on behind it
    ended: set[int] = field(factory=set)


class FrameWriter:
    """The frames of one connection, on their way out.

    Args:
        differences: Whether the encoding can carry them.

    Attributes:
        pieces: Whether the client reads `Pieces`.
        differences: Whether differences are tried.
    """

    def __init__(self, *, differences: bool) -> None:
        self.pieces = False
        self.differences = differences
        self._number = 0
        self._stream_ids: tuple[int, ...] = ()
        self._contexts: dict[int, int | None] = {}  # of streams of which a frame was sent; None: it is clear

    def forget(self, stream_id: int) -> None:
        """The next frame of a stream has its numbers, and its text whole; streams are named again."""
        self._contexts.pop(stream_id, None)
        self._stream_ids = ()

    def draft(self, frames: Sequence[Frame]) -> FrameDraft:
        """Says how frames are to travel.

        Raises:
            LocalProtocolError: A text holds a lone surrogate.
        """
        draft = FrameDraft()
        if self.pieces:
            draft.outgoing.append(self._pieces(frames, draft))
        else:
            draft.outgoing += [self._numbered(frame, draft) for frame in frames]
        return draft

    def commit(self, draft: FrameDraft) -> None:
        """Notes that a draft is sent."""
        self._contexts.update(draft.contexts)
        for stream_id in draft.ended:
            self._contexts.pop(stream_id, None)
        if self.pieces:
            (pieces,) = draft.outgoing
            assert isinstance(pieces, Pieces)  # noqa: S101 - as drafted
            self._number = pieces.number
            if pieces.stream_ids and 0 not in pieces.stream_ids:
                self._stream_ids = pieces.stream_ids

    def _pieces(self, frames: Sequence[Frame], draft: FrameDraft) -> Pieces:
        streams: list[int] = []
        texts: list[bytes] = []
        sizes: list[int] = []
        others: list[Frame | CodedDelta] = []
        extra = _LONE_SIZE_BYTES if len(frames) == 1 else 0
        for frame in frames:
            stream_id = frame.stream_id
            if not isinstance(frame, Delta) or frame.logprobs or not self._is_known(stream_id, draft):
                streams.append(0)
                others.append(self._numbered(frame, draft))
                continue
            text, is_difference = self._text(frame, draft, extra)
            streams.append(stream_id)
            texts.append(text)
            sizes.append(2 * len(text) + is_difference)
        stream_ids = tuple(streams)
        counts = tuple(frame.token_count for frame, each in zip(frames, streams, strict=True) if each)  # type: ignore[union-attr]
        return Pieces(
            number=(self._number + 1) & 127,
            stream_ids=() if stream_ids == self._stream_ids else stream_ids,
            data=b"".join(texts),
            sizes=() if len(sizes) == 1 and not sizes[0] & 1 else tuple(sizes),
            token_counts=counts if any(count != 1 for count in counts) else (),
            frames=tuple(others),
        )

    def _is_known(self, stream_id: int, draft: FrameDraft) -> bool:
        return (stream_id in draft.contexts or stream_id in self._contexts) and stream_id not in draft.ended

    def _numbered(self, frame: Frame, draft: FrameDraft) -> Frame | CodedDelta:
        stream_id = frame.stream_id
        if not isinstance(frame, Delta):
            draft.text_bytes.append(0)
            if isinstance(frame, Flush) and frame.final is None:
                draft.contexts[stream_id] = None
            else:
                draft.ended.add(stream_id)
            return frame
        text, is_difference = self._text(frame, draft, 0)
        if not is_difference:
            return frame
        return CodedDelta(
            stream_id=stream_id,
            id=frame.id,
            epoch=frame.epoch,
            offset=frame.offset,
            difference=text,
            token_count=frame.token_count,
            logprobs=frame.logprobs,
        )

    def _text(self, frame: Delta, draft: FrameDraft, extra: int) -> tuple[bytes, bool]:
        """Returns a text as it travels, and whether that is as differences; notes the context behind it."""
        stream_id, text = frame.stream_id, frame.text
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            raise LocalProtocolError("Delta.text holds a lone surrogate") from None
        draft.text_bytes.append(len(encoded))
        contexts = draft.contexts if stream_id in draft.contexts else self._contexts
        context = contexts.get(stream_id)
        draft.contexts[stream_id] = ord(text[-1]) if text else context
        # A difference takes at least one byte a code point, so it never beats ASCII.
        if self.differences and context is not None and len(encoded) > len(text) + extra:
            coded = difference(text, context)
            if len(coded) + extra < len(encoded):
                draft.differences += 1
                return coded, True
        return encoded, False
