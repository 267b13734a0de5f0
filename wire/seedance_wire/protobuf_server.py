"""A server's messages in protobuf: `messages.py` <-> `seedance_pb2.ServerEnvelope`.

Field by field. A DELTA's text is whole in `Delta` and still in differences in `CodedDelta`; which of the two
to send is decided elsewhere. An enum value that this minor version does not know is an error, because no
server sends one.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import seedance_pb2 as pb
from .envelope import MAX_FRAMES, CodedDelta, FromServer, Outgoing
from .errors import DecodeError
from .messages import (
    Accepted,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    Frame,
    GoAway,
    Limits,
    Refused,
    StageTiming,
    TokenLogprob,
    Usage,
    Welcome,
)
from .validity import check_received

__all__ = ["server_envelope", "server_messages"]

_DURABILITY_TO_PB = {Durability.NONE: pb.DURABILITY_NONE}
_DURABILITY_FROM_PB = {number: value for value, number in _DURABILITY_TO_PB.items()}
_ERROR_CODE_TO_PB = {code: pb.ErrorCode.Value(f"ERROR_CODE_{code.name}") for code in ErrorCode}
_ERROR_CODE_FROM_PB = {number: code for code, number in _ERROR_CODE_TO_PB.items()}
_FINISH_TO_PB = {reason: pb.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}
_FINISH_FROM_PB = {number: reason for reason, number in _FINISH_TO_PB.items()}


def server_envelope(messages: Sequence[Outgoing]) -> pb.ServerEnvelope:
    """Returns the envelope of a message, or of several frames.

    A value that does not fit raises TypeError or ValueError.
    """
    if len(messages) > 1:
        frames = [_frame_to_pb(m) for m in messages if isinstance(m, Delta | CodedDelta | Flush | Error)]
        return pb.ServerEnvelope(frames=pb.FrameBatch(frames=frames))
    message = messages[0]
    match message:
        case Delta() | CodedDelta() | Flush() | Error():
            return pb.ServerEnvelope(frame=_frame_to_pb(message))
        case Accepted():
            accepted = pb.Accepted(
                sequence_id=message.sequence_id,
                stream_id=message.stream_id,
                durability=_DURABILITY_TO_PB[message.durability],
            )
            return pb.ServerEnvelope(accepted=accepted)
        case Refused():
            return pb.ServerEnvelope(refused=_refused_to_pb(message))
        case Welcome():
            return pb.ServerEnvelope(welcome=_welcome_to_pb(message))
        case GoAway():
            goaway = pb.GoAway(
                reason=message.reason, reconnect_to=message.reconnect_to, deadline_ms=message.deadline_ms
            )
            return pb.ServerEnvelope(goaway=goaway)
        case _:
            raise TypeError("no message of a server's")


def server_messages(envelope: pb.ServerEnvelope) -> Sequence[FromServer]:
    """Returns the message of an envelope, or its frames.

    Raises:
        DecodeError: It holds none, or one with a value that the protocol forbids.
    """
    message: FromServer
    match envelope.WhichOneof("message"):
        case "frame":
            return (_frame_from_pb(envelope.frame),)
        case "frames":
            frames = envelope.frames.frames
            if not 1 <= len(frames) <= MAX_FRAMES:
                raise DecodeError(f"a batch holds 1 to {MAX_FRAMES} frames, not {len(frames)}")
            return [_frame_from_pb(frame) for frame in frames]
        case "accepted":
            message = Accepted(
                sequence_id=envelope.accepted.sequence_id,
                stream_id=envelope.accepted.stream_id,
                durability=_durability(envelope.accepted.durability),
            )
        case "refused":
            message = _refused_from_pb(envelope.refused)
        case "welcome":
            message = _welcome_from_pb(envelope.welcome)
        case "goaway":
            goaway = envelope.goaway
            message = GoAway(
                reason=goaway.reason,
                reconnect_to=goaway.reconnect_to if goaway.HasField("reconnect_to") else None,
                deadline_ms=goaway.deadline_ms if goaway.HasField("deadline_ms") else None,
            )
        case _:
            raise DecodeError("the envelope holds no message of a server's")
    check_received(message)
    return (message,)


def _frame_to_pb(frame: Frame | CodedDelta) -> pb.Frame:
    match frame:
        case Delta() | CodedDelta():
            written = pb.Frame(
                stream_id=frame.stream_id,
                id=frame.id,
                type=pb.FRAME_TYPE_DELTA,
                epoch=frame.epoch,
                offset=frame.offset,
                token_count=None if frame.token_count == 1 else frame.token_count,
                logprobs=[_logprob_to_pb(logprob) for logprob in frame.logprobs],
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
                epoch=frame.epoch,
                offset=frame.offset,
                final=None if frame.final is None else _final_to_pb(frame.final),
            )
        case Error():
            return pb.Frame(
                stream_id=frame.stream_id,
                id=frame.id,
                type=pb.FRAME_TYPE_ERROR,
                epoch=frame.epoch,
                offset=frame.offset,
                failure=pb.Failure(
                    code=_ERROR_CODE_TO_PB[frame.code],
                    message=frame.message,
                    retryable=frame.retryable,
                    retry_after_ms=frame.retry_after_ms,
                ),
            )


def _frame_from_pb(frame: pb.Frame) -> Frame | CodedDelta:
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
            code=_error_code(failure.code),
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
    reason = _FINISH_FROM_PB.get(final.finish_reason)
    if reason is None:
        raise DecodeError(f"no finish reason {final.finish_reason}")
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


def _refused_to_pb(message: Refused) -> pb.Refused:
    return pb.Refused(
        sequence_id=message.sequence_id,
        code=_ERROR_CODE_TO_PB[message.code],
        message=message.message,
        field=message.field,
        retryable=message.retryable,
        retry_after_ms=message.retry_after_ms,
    )


def _refused_from_pb(refused: pb.Refused) -> Refused:
    return Refused(
        sequence_id=refused.sequence_id,
        code=_error_code(refused.code),
        message=refused.message,
        field=refused.field if refused.HasField("field") else None,
        retryable=refused.retryable,
        retry_after_ms=refused.retry_after_ms if refused.HasField("retry_after_ms") else None,
    )


def _welcome_to_pb(message: Welcome) -> pb.Welcome:
    return pb.Welcome(
        session_id=message.session_id,
        epoch=message.epoch,
        last_sequence_id=message.last_sequence_id,
        model=message.model,
        limits=pb.Limits(
            max_message_bytes=message.limits.max_message_bytes,
            max_streams=message.limits.max_streams,
            max_context_tokens=message.limits.max_context_tokens,
        ),
        minor_version=message.minor_version,
        server_version=message.server_version,
        capabilities=message.capabilities,
    )


def _welcome_from_pb(welcome: pb.Welcome) -> Welcome:
    return Welcome(
        session_id=welcome.session_id,
        epoch=welcome.epoch,
        last_sequence_id=welcome.last_sequence_id,
        model=welcome.model,
        limits=Limits(
            max_message_bytes=welcome.limits.max_message_bytes,
            max_streams=welcome.limits.max_streams,
            max_context_tokens=welcome.limits.max_context_tokens,
        ),
        minor_version=welcome.minor_version,
        server_version=welcome.server_version,
        capabilities=tuple(welcome.capabilities),
    )


def _durability(number: int) -> Durability:
    try:
        return _DURABILITY_FROM_PB[number]  # type: ignore[index]
    except KeyError:
        raise DecodeError(f"no durability {number}") from None


def _error_code(number: int) -> ErrorCode:
    try:
        return _ERROR_CODE_FROM_PB[number]  # type: ignore[index]
    except KeyError:
        raise DecodeError(f"no error code {number}") from None
