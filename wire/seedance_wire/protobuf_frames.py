"""Frames in protobuf: `messages.py` <-> `seedance_pb2.Frame`.

A DELTA's text is whole in `Delta` and still in differences in `CodedDelta`; which of the two to send is
decided elsewhere. An enum value that this minor version does not know is an error, because no server sends
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from . import seedance_pb2 as pb
from .envelope import CodedDelta
from .errors import DecodeError
from .messages import (
    Delta,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    Frame,
    StageTiming,
    TokenLogprob,
    Usage,
)
from .validity import check_received

__all__ = ["ERROR_CODE_TO_PB", "error_code_from_pb", "frame_from_pb", "frame_to_pb", "meaning_of"]

T = TypeVar("T")

ERROR_CODE_TO_PB = {code: pb.ErrorCode.Value(f"ERROR_CODE_{code.name}") for code in ErrorCode}
"""The number of each error code."""

_ERROR_CODE_FROM_PB = {number: code for code, number in ERROR_CODE_TO_PB.items()}
_FINISH_TO_PB = {reason: pb.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}
_FINISH_FROM_PB = {number: reason for reason, number in _FINISH_TO_PB.items()}


def frame_to_pb(frame: Frame | CodedDelta, *, has_epoch: bool = True) -> pb.Frame:
    """Returns a frame, without its epoch if so asked; what does not fit raises TypeError or ValueError."""
    epoch = frame.epoch if has_epoch else 0
    match frame:
        case Delta() | CodedDelta():
            written = pb.Frame(
                stream_id=frame.stream_id,
                id=frame.id,
                type=pb.FRAME_TYPE_DELTA,
                epoch=epoch,
                offset=frame.offset,
                token_count=None if frame.token_count == 1 else frame.token_count,
                logprobs=[_logprob_to_pb(logprob) for logprob in frame.logprobs] if frame.logprobs else None,
            )
            if isinstance(frame, Delta):
                written.text = frame.text
            else:
                written.difference = frame.difference
            return written
        case Flush():
            return pb.Frame(
                stream_id=frame.stream_id,
                id=frame.id,
                type=pb.FRAME_TYPE_FLUSH,
                epoch=epoch,
                offset=frame.offset,
                final=None if frame.final is None else _final_to_pb(frame.final),
            )
        case Error():
            return pb.Frame(
                stream_id=frame.stream_id,
                id=frame.id,
                type=pb.FRAME_TYPE_ERROR,
                epoch=epoch,
                offset=frame.offset,
                failure=pb.Failure(
                    code=ERROR_CODE_TO_PB[frame.code],
                    message=frame.message,
                    retryable=frame.retryable,
                    retry_after_ms=frame.retry_after_ms,
                ),
            )


def frame_from_pb(frame: pb.Frame) -> Frame | CodedDelta:
    """Returns a frame, a DELTA as it came.

    Raises:
        DecodeError: It is none, or holds a value that the protocol forbids.
    """
    message: Frame | CodedDelta
    stream_id, id_, epoch, offset = frame.stream_id, frame.id, frame.epoch, frame.offset
    if frame.type == pb.FRAME_TYPE_DELTA:
        token_count = frame.token_count if frame.HasField("token_count") else 1
        logprobs = tuple(map(_logprob_from_pb, frame.logprobs)) if frame.logprobs else ()
        match frame.WhichOneof("data"):
            case "text":
                message = Delta(
                    stream_id=stream_id,
                    id=id_,
                    epoch=epoch,
                    offset=offset,
                    text=frame.text,
                    token_count=token_count,
                    logprobs=logprobs,
                )
            case "difference":
                message = CodedDelta(
                    stream_id=stream_id,
                    id=id_,
                    epoch=epoch,
                    offset=offset,
                    difference=frame.difference,
                    token_count=token_count,
                    logprobs=logprobs,
                )
            case _:
                raise DecodeError("a DELTA frame without data")
    elif frame.type == pb.FRAME_TYPE_FLUSH:
        final = _final_from_pb(frame.final) if frame.HasField("final") else None
        message = Flush(stream_id=stream_id, id=id_, epoch=epoch, offset=offset, final=final)
    elif frame.type == pb.FRAME_TYPE_ERROR:
        failure = frame.failure
        message = Error(
            stream_id=stream_id,
            id=id_,
            epoch=epoch,
            offset=offset,
            code=error_code_from_pb(failure.code),
            message=failure.message,
            retryable=failure.retryable,
            retry_after_ms=failure.retry_after_ms if failure.HasField("retry_after_ms") else None,
        )
    else:
        raise DecodeError(f"no frame type {frame.type}")
    check_received(message)
    return message


def _logprob_to_pb(logprob: TokenLogprob) -> pb.TokenLogprob:
    top = [pb.Alternative(token_id=t, text=text, logprob=value) for t, text, value in logprob.top]
    return pb.TokenLogprob(token_id=logprob.token_id, text=logprob.text, logprob=logprob.logprob, top=top)


def _logprob_from_pb(logprob: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        token_id=logprob.token_id,
        text=logprob.text,
        logprob=logprob.logprob,
        top=tuple((other.token_id, other.text, other.logprob) for other in logprob.top),
    )


def _final_to_pb(final: Final) -> pb.Final:
    usage, timing = final.usage, final.timing
    written = pb.Final(
        finish_reason=_FINISH_TO_PB[final.finish_reason],
        usage=pb.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        timing=pb.StageTiming(
            queue_ms=timing.queue_ms,
            preprocess_ms=timing.preprocess_ms,
            prefill_ms=timing.prefill_ms,
            first_decode_ms=timing.first_decode_ms,
            cache_sync_ms=timing.cache_sync_ms,
            egress_ms=timing.egress_ms,
        ),
        digest=final.digest,
    )
    if isinstance(final.stop, str):
        written.stop_text = final.stop
    elif final.stop is not None:
        written.stop_token_id = final.stop
    return written


def _final_from_pb(final: pb.Final) -> Final:
    reason = meaning_of(final.finish_reason, _FINISH_FROM_PB, "finish reason")
    stop: str | int | None = None
    match final.WhichOneof("stop"):
        case "stop_text":
            stop = final.stop_text
        case "stop_token_id":
            stop = final.stop_token_id
    usage, timing = final.usage, final.timing
    return Final(
        finish_reason=reason,
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        timing=StageTiming(
            queue_ms=timing.queue_ms,
            preprocess_ms=timing.preprocess_ms,
            prefill_ms=timing.prefill_ms,
            first_decode_ms=timing.first_decode_ms,
            cache_sync_ms=timing.cache_sync_ms,
            egress_ms=timing.egress_ms,
        ),
        digest=final.digest,
        stop=stop,
    )


def error_code_from_pb(number: int) -> ErrorCode:
    """Returns the error code of a number.

    Raises:
        DecodeError: There is none.
    """
    return meaning_of(number, _ERROR_CODE_FROM_PB, "error code")


def meaning_of(number: int, meanings: Mapping[Any, T], kind: str) -> T:
    """Returns what a number of one of the schema's enumerations stands for.

    Raises:
        DecodeError: Nothing, in this version; ``kind`` names the enumeration.
    """
    try:
        return meanings[number]
    except KeyError:
        raise DecodeError(f"no {kind} {number}") from None
