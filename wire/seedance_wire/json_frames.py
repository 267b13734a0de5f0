"""Frames as JSON objects, for the JSON encoding and, in parts, for the raw one.

They have the short names of S8: ``s`` stream, ``e`` epoch, ``id``, ``t`` type, ``o`` offset, ``d`` data, and
``n`` tokens where it is not one. Text is never delta-encoded here. Unknown fields are skipped, as a newer
server may add some.
"""

from __future__ import annotations

from .envelope import MAX_LOGPROB_ENTRIES
from .json_fields import Fields, Json, as_integer, integer, present, real, unreal
from .messages import (
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
from .validity import InvalidFieldError

__all__ = [
    "failure_from_json",
    "failure_to_json",
    "final_from_json",
    "final_to_json",
    "frame_from_json",
    "frame_to_json",
    "logprobs_from_json",
    "logprobs_to_json",
]

_ERROR_CODES = {code.value: code for code in ErrorCode}
_FINISH_REASONS = {reason.value: reason for reason in FinishReason}
_TIMINGS = ("queue_ms", "preprocess_ms", "prefill_ms", "first_decode_ms", "cache_sync_ms", "egress_ms")


def frame_to_json(frame: Frame) -> dict[str, Json]:
    """Returns a frame as a JSON object."""
    written: dict[str, Json] = {
        "s": integer(frame.stream_id),
        "e": integer(frame.epoch),
        "id": integer(frame.id),
    }
    match frame:
        case Delta():
            written |= {"t": FrameType.DELTA.value, "o": frame.offset, "d": frame.text}
            if frame.token_count != 1:
                written["n"] = frame.token_count
            if frame.logprobs:
                written["logprobs"] = logprobs_to_json(frame.logprobs)
        case Flush():
            written |= {"t": FrameType.FLUSH.value, "o": frame.offset, "d": ""}
            if frame.final is not None:
                written["final"] = final_to_json(frame.final)
        case Error():
            written |= {"t": FrameType.ERROR.value, "o": frame.offset, "d": frame.message}
            failure = failure_to_json(frame)
            del failure["message"]  # it is the data
            written |= failure
    return written


def frame_from_json(fields: Fields) -> Frame:
    """Returns a frame.

    Raises:
        InvalidFieldError: Something is missing or wrong.
    """
    stream_id, epoch, id_ = fields.integer("s"), fields.integer("e"), fields.integer("id")
    frame_type, offset = fields.integer("t"), fields.integer("o")
    if frame_type == FrameType.DELTA:
        token_count = fields.optional_integer("n")
        return Delta(
            stream_id=stream_id,
            id=id_,
            epoch=epoch,
            offset=offset,
            text=fields.text("d"),
            token_count=1 if token_count is None else token_count,
            logprobs=logprobs_from_json(fields),
        )
    if frame_type == FrameType.FLUSH:
        final = None if fields.optional("final") is None else final_from_json(fields.object("final"))
        return Flush(stream_id=stream_id, id=id_, epoch=epoch, offset=offset, final=final)
    if frame_type == FrameType.ERROR:
        code, retryable, retry_after_ms = failure_from_json(fields)
        return Error(
            stream_id=stream_id,
            id=id_,
            epoch=epoch,
            offset=offset,
            code=code,
            message=fields.text("d"),
            retryable=retryable,
            retry_after_ms=retry_after_ms,
        )
    raise InvalidFieldError("t", "must be 1, 2 or 3")


def failure_to_json(frame: Error) -> dict[str, Json]:
    """Returns what an ERROR frame says beyond its numbering."""
    return present(
        code=frame.code.value,
        message=frame.message,
        retryable=frame.retryable,
        retry_after_ms=integer(frame.retry_after_ms),
    )


def failure_from_json(fields: Fields) -> tuple[ErrorCode, bool, int | None]:
    """Returns code, whether to retry, and after how many milliseconds.

    Raises:
        InvalidFieldError: One is missing or wrong.
    """
    code = fields.choice("code", _ERROR_CODES)
    return code, fields.flag("retryable"), fields.optional_integer("retry_after_ms")


def logprobs_to_json(logprobs: tuple[TokenLogprob, ...]) -> list[Json]:
    """Returns log probabilities as JSON."""
    return [
        {
            "token_id": integer(entry.token_id),
            "text": entry.text,
            "logprob": unreal(entry.logprob),
            "top": [[integer(token_id), text, unreal(value)] for token_id, text, value in entry.top],
        }
        for entry in logprobs
    ]


def logprobs_from_json(fields: Fields) -> tuple[TokenLogprob, ...]:
    """Returns the log probabilities of a frame.

    Raises:
        InvalidFieldError: One is wrong.
    """
    return tuple(
        TokenLogprob(
            token_id=entry.integer("token_id"),
            text=entry.text("text"),
            logprob=entry.real("logprob"),
            top=tuple(
                _alternative(entry.path("top"), value)
                for value in entry.array("top", limit=MAX_LOGPROB_ENTRIES)
            ),
        )
        for entry in fields.objects("logprobs", limit=MAX_LOGPROB_ENTRIES)
    )


def _alternative(path: str, value: Json) -> tuple[int, str, float]:
    match value:
        case [token_id, str() as text, logprob]:
            return as_integer(path, token_id), text, real(path, logprob)
    raise InvalidFieldError(path, "must be a list of a token id, its text and its log probability")


def final_to_json(final: Final) -> dict[str, Json]:
    """Returns how a stream ended, as JSON."""
    usage = final.usage
    # A stop token's id is a number or, if large, digits; so a stop string needs a member of its own.
    stop: dict[str, Json] = {}
    if isinstance(final.stop, str):
        stop["stop"] = final.stop
    elif final.stop is not None:
        stop["stop_token_id"] = integer(final.stop)
    return {
        "finish_reason": final.finish_reason.value,
        "usage": {
            "prompt_tokens": integer(usage.prompt_tokens),
            "completion_tokens": integer(usage.completion_tokens),
            "cached_tokens": integer(usage.cached_tokens),
        },
        "timing": {name: unreal(getattr(final.timing, name)) for name in _TIMINGS},
        "digest": final.digest.hex(),
    } | stop


def final_from_json(fields: Fields) -> Final:
    """Returns how a stream ended.

    Raises:
        InvalidFieldError: Something is missing or wrong.
    """
    usage, timing = fields.object("usage"), fields.object("timing")
    stop = fields.optional_text("stop")
    return Final(
        finish_reason=fields.choice("finish_reason", _FINISH_REASONS),
        usage=Usage(
            prompt_tokens=usage.integer("prompt_tokens"),
            completion_tokens=usage.integer("completion_tokens"),
            cached_tokens=usage.integer("cached_tokens"),
        ),
        timing=StageTiming(**{name: timing.real(name) for name in _TIMINGS}),
        digest=fields.hexadecimal("digest"),
        stop=fields.optional_integer("stop_token_id") if stop is None else stop,
    )
