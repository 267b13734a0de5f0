"""Outputs of the engine become numbered frames: ids without a hole, offsets that add up, segments, digests.

A draft is made from a position and gives the next one; nothing is changed on the way. So frames that could
not be committed leave no trace, and the same outputs after the same position give the same frames.

It must not know journals, readers or how the stream ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from attrs import field, frozen

from seedance_server.engine.sequence import Finish, SequenceOutput
from seedance_server.engine.sequence import FinishReason as EngineFinishReason
from seedance_server.engine.sequence import StageTiming as EngineTiming
from seedance_server.journal.records import FrameRecord
from seedance_server.outbox import frame_size, logprobs_size
from seedance_server.tail import TailFrame
from seedance_wire.messages import (
    Delta,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    Frame,
    FrameType,
    StageTiming,
    TokenLogprob,
    Usage,
)
from seedance_wire.running_digest import PREFIX_BYTES
from seedance_wire.stored_form import dump_frame

__all__ = [
    "Draft",
    "Ending",
    "Position",
    "cancelled_final",
    "draft_ending",
    "draft_frames",
    "final_of",
    "frame_records",
]


_PIECE_BYTES = 32_768
"""Text, and log probabilities by `logprobs_size`, of one DELTA: so it fits a message, whoever reads it. JSON
makes seven times of it at most."""
_HELD_TOKEN_BYTES = 32
"""What a token without text counts for: about a thousand are kept, then they are written down."""


@frozen(kw_only=True)
class Position:
    """How far a stream's frames have come.

    Attributes:
        next_id: The next frame's number.
        offset: Text before it, UTF-8 bytes.
        segment_start: Where its segment began.
        digest: Hash of the text so far; never updated, only copied.
    """

    next_id: int = 1
    offset: int = 0
    segment_start: int = 0
    digest: hashlib._Hash = field(factory=hashlib.sha256, repr=False, eq=False)


@frozen(kw_only=True)
class Draft:
    """Frames and where they lead.

    Attributes:
        frames: In order; none if no text came out.
        token_ids: Of each frame, the tokens that it stands for.
        position: After them.
        held: Outputs that gave no frame yet: their tokens belong to the next one.
    """

    frames: tuple[TailFrame, ...]
    token_ids: tuple[tuple[int, ...], ...]
    position: Position
    held: tuple[SequenceOutput, ...] = ()


@frozen
class Ending:
    """Why a stream ends with an ERROR frame."""

    code: ErrorCode
    message: str
    retryable: bool
    retry_after_ms: int | None = None


def draft_frames(
    stream_id: int,
    position: Position,
    outputs: Sequence[SequenceOutput],
    *,
    segment_bytes: int,
    held_bytes: int = 32_768,
) -> Draft:
    """Frames of outputs, DELTAs for each that has text, one unless it is long; what has none waits for more.

    Text may not come for as long as an answer lasts (control tokens, a stop string that nearly matches), so
    what waits is bounded: above ``held_bytes`` it goes as a DELTA without text.

    Args:
        stream_id: The stream's number.
        position: Where they begin.
        outputs: In order.
        segment_bytes: Text after which a non-final FLUSH commits the segment.
        held_bytes: Tokens without text that may wait, measured as `frame_size` measures log probabilities.
    """
    frames: list[TailFrame] = []
    token_ids: list[tuple[int, ...]] = []
    held: list[SequenceOutput] = []
    next_id, offset, segment_start = position.next_id, position.offset, position.segment_start
    digest = position.digest.copy()
    waiting_bytes = 0

    def add(frame: Frame, ids: tuple[int, ...]) -> None:
        nonlocal next_id
        frames.append(TailFrame(frame, digest.digest()[:PREFIX_BYTES], frame_size(frame)))
        token_ids.append(ids)
        next_id += 1

    for output in outputs:
        held.append(output)
        waiting_bytes += _HELD_TOKEN_BYTES * len(output.token_ids) + logprobs_size(output.logprobs)
        if not output.text and waiting_bytes <= held_bytes:
            has_logprobs = any(each.logprobs for each in held)
            if output.finish is None or not has_logprobs:
                continue
        if offset - segment_start >= segment_bytes:
            add(Flush(stream_id=stream_id, id=next_id, epoch=1, offset=offset), ())
            segment_start = offset
        ids, pieces = _pieces(held)
        held.clear()
        waiting_bytes = 0
        for text, logprobs in pieces:
            delta = Delta(
                stream_id=stream_id,
                id=next_id,
                epoch=1,
                offset=offset,
                text=text,
                token_count=len(ids),
                logprobs=logprobs,
            )
            encoded = delta.text.encode()
            digest.update(encoded)
            add(delta, ids)
            offset += len(encoded)
            ids = ()  # all with the first: the others are committed together with it
    after = Position(next_id=next_id, offset=offset, segment_start=segment_start, digest=digest)
    return Draft(frames=tuple(frames), token_ids=tuple(token_ids), position=after, held=tuple(held))


def _pieces(
    outputs: Sequence[SequenceOutput],
) -> tuple[tuple[int, ...], Sequence[tuple[str, tuple[TokenLogprob, ...]]]]:
    """The tokens of outputs whose last has all the text, and what frames are to say of them: one at least."""
    text = outputs[-1].text
    if len(outputs) == 1 and 4 * len(text) <= _PIECE_BYTES and not outputs[0].logprobs:
        return outputs[0].token_ids, ((text, ()),)  # as nearly all are: one for each token
    ids = tuple(token_id for each in outputs for token_id in each.token_ids)
    pieces = zip_longest(_texts(text), _logprobs(outputs))
    return ids, [(piece or "", logprobs or ()) for piece, logprobs in pieces]


def _texts(text: str) -> Iterator[str]:
    """A text in pieces that a frame may hold; one at least."""
    if 4 * len(text) <= _PIECE_BYTES:
        yield text
        return
    size = start = 0
    for index, character in enumerate(text):
        size += len(character.encode())
        if size > _PIECE_BYTES:
            yield text[start:index]
            size, start = len(character.encode()), index
    yield text[start:]


def _logprobs(outputs: Sequence[SequenceOutput]) -> Iterator[tuple[TokenLogprob, ...]]:
    """Log probabilities in pieces that a frame may hold, as far as a single one of them does."""
    piece: list[TokenLogprob] = []
    size = 0
    for output in outputs:
        for entry in output.logprobs:
            size += logprobs_size((entry,))
            if piece and size > _PIECE_BYTES:
                yield tuple(piece)
                piece, size = [], logprobs_size((entry,))
            piece.append(
                TokenLogprob(token_id=entry.token_id, text=entry.text, logprob=entry.logprob, top=entry.top)
            )
    yield tuple(piece)


def draft_ending(
    stream_id: int,
    position: Position,
    ending: Final | Ending,
    held: Sequence[SequenceOutput],
    *,
    out_of_turn: bool,
) -> Draft:
    """The terminal frame; the tokens that gave no text (an end-of-sequence token) go with it."""
    frame: Frame
    if isinstance(ending, Final):
        frame = Flush(stream_id=stream_id, id=position.next_id, epoch=1, offset=position.offset, final=ending)
    else:
        frame = Error(
            stream_id=stream_id,
            id=position.next_id,
            epoch=1,
            offset=position.offset,
            code=ending.code,
            message=ending.message,
            retryable=ending.retryable,
            retry_after_ms=ending.retry_after_ms,
        )
    digest = position.digest.digest()[:PREFIX_BYTES]
    ids = tuple(token_id for output in held for token_id in output.token_ids)
    entry = TailFrame(frame, digest, frame_size(frame), out_of_turn=out_of_turn)
    after = Position(
        next_id=position.next_id + 1,
        offset=position.offset,
        segment_start=position.segment_start,
        digest=position.digest,
    )
    return Draft(frames=(entry,), token_ids=(ids,), position=after)


_REASONS = {
    EngineFinishReason.STOP: FinishReason.STOP,
    EngineFinishReason.LENGTH: FinishReason.LENGTH,
    EngineFinishReason.CANCELLED: FinishReason.CANCELLED,
}


def final_of(
    finish: Finish, *, was_cancelled: bool, timing: EngineTiming | None = None, egress_s: float = 0.0
) -> Final:
    """The end of a generation as the client is told it; its digest is still to be filled in.

    Args:
        finish: As the engine says it.
        was_cancelled: The client didn't want the rest, whatever the engine came to meanwhile.
        timing: Of the stream's first token; None if this generation had it.
        egress_s: What went by from there until the first frame was on its socket.
    """
    timing = timing or finish.timing
    return Final(
        finish_reason=FinishReason.CANCELLED if was_cancelled else _REASONS[finish.reason],
        usage=Usage(
            prompt_tokens=finish.usage.prompt_tokens,
            completion_tokens=finish.usage.completion_tokens,
            cached_tokens=finish.usage.cached_tokens,
        ),
        timing=StageTiming(
            queue_ms=timing.queue_s * 1e3,
            preprocess_ms=timing.preprocess_s * 1e3,
            prefill_ms=timing.prefill_s * 1e3,
            first_decode_ms=timing.first_decode_s * 1e3,
            cache_sync_ms=timing.cache_sync_s * 1e3,
            egress_ms=egress_s * 1e3,
        ),
        digest=b"",
        stop=None if was_cancelled else finish.stop,
    )


def cancelled_final(prompt_tokens: int, completion_tokens: int) -> Final:
    """The end of a stream that was cancelled while nothing was generated for it; as from `final_of`."""
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    return Final(finish_reason=FinishReason.CANCELLED, usage=usage, timing=StageTiming(), digest=b"")


def frame_records(draft: Draft) -> list[FrameRecord]:
    """The frames as the journal keeps them.

    Raises:
        LocalProtocolError: A frame holds what the protocol can't carry.
    """
    return [
        FrameRecord(
            id=frame.id,
            kind=_KINDS[type(frame)],
            offset=frame.offset,
            size=len(frame.text.encode()) if isinstance(frame, Delta) else 0,
            payload=dump_frame(frame),
            token_ids=ids,
        )
        for frame, ids in zip((entry.frame for entry in draft.frames), draft.token_ids, strict=True)
    ]


_KINDS = {Delta: int(FrameType.DELTA), Flush: int(FrameType.FLUSH), Error: int(FrameType.ERROR)}
