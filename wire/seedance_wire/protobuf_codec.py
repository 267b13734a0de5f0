"""seedance.v1: one protobuf envelope in each binary WebSocket message (S11).

`seedance.proto` is the schema and `seedance_pb2` is generated from it. Parsing is done by upb, protobuf's C
implementation, which bounds depth and checks UTF-8; the pure-Python one does neither as fast nor as strictly, so
importing this module without upb fails. Unknown fields are skipped, as a newer peer may add some; an unknown enum
value is an error, because a peer sends none that our minor version lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.internal import api_implementation
from google.protobuf.message import DecodeError as ParseError

from . import seedance_pb2 as pb
from .envelope import MAX_FRAMES, CodedDelta, FromClient, FromServer, InvalidSubmit, Outgoing, check_envelope
from .errors import CloseCode, DecodeError, LocalProtocolError
from .messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    ChatMessage,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    GoAway,
    Hello,
    Limits,
    Refused,
    Sampling,
    StageTiming,
    Submit,
    TokenLogprob,
    Usage,
    Welcome,
)
from .validity import check_outgoing, check_received, check_submit

__all__ = ["ProtobufCodec"]

if api_implementation.Type() != "upb":
    raise ImportError(
        "seedance_wire needs protobuf's upb backend, which every binary wheel has; this process uses "
        f"{api_implementation.Type()!r}. Unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION and install a wheel."
    )

_DURABILITY_TO_PB = {Durability.NONE: pb.DURABILITY_NONE}
_DURABILITY_FROM_PB = {number: value for value, number in _DURABILITY_TO_PB.items()}
_ERROR_CODE_TO_PB = {code: pb.ErrorCode.Value(f"ERROR_CODE_{code.name}") for code in ErrorCode}
_ERROR_CODE_FROM_PB = {number: code for code, number in _ERROR_CODE_TO_PB.items()}
_FINISH_TO_PB = {reason: pb.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}
_FINISH_FROM_PB = {number: reason for reason, number in _FINISH_TO_PB.items()}


class ProtobufCodec:
    """The protobuf encoding."""

    subprotocol = "seedance.v1"
    carries_differences = True

    def encode(self, messages: Sequence[Outgoing]) -> bytes:
        """Writes one envelope; see `Codec`."""
        check_envelope(messages)
        for message in messages:
            check_outgoing(message)
        try:
            if len(messages) > 1:
                frames = [_frame_to_pb(message) for message in messages]
                return pb.ServerEnvelope(frames=pb.FrameBatch(frames=frames)).SerializeToString()
            return _to_pb(messages[0]).SerializeToString()
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(f"{type(messages[0]).__name__} cannot be encoded: {error}") from error

    def decode_client(self, payload: bytes | str) -> Sequence[FromClient]:
        """Reads a client's envelope; see `Codec`."""
        envelope = pb.ClientEnvelope()
        _parse(envelope, payload)
        which = envelope.WhichOneof("message")
        message: FromClient
        match which:
            case "submit":
                return (_submit_from_pb(envelope.submit),)
            case "ack":
                message = Ack(processed=tuple((p.stream_id, p.frame_id) for p in envelope.ack.processed))
            case "cancel":
                message = Cancel(sequence_id=envelope.cancel.sequence_id, stream_id=envelope.cancel.stream_id)
            case "hello":
                hello = envelope.hello
                message = Hello(
                    minor_version=hello.minor_version,
                    sdk_name=hello.sdk_name,
                    sdk_version=hello.sdk_version,
                    capabilities=tuple(hello.capabilities),
                )
            case "bye":
                message = Bye()
            case _:
                raise DecodeError("the envelope holds no message of a client's")
        check_received(message)
        return (message,)

    def decode_server(self, payload: bytes | str) -> Sequence[FromServer]:
        """Reads a server's envelope; see `Codec`."""
        envelope = pb.ServerEnvelope()
        _parse(envelope, payload)
        which = envelope.WhichOneof("message")
        message: FromServer
        match which:
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


def _parse(envelope: pb.ClientEnvelope | pb.ServerEnvelope, payload: bytes | str) -> None:
    if isinstance(payload, str):
        raise DecodeError("a text message, where seedance.v1 is binary", CloseCode.UNSUPPORTED_DATA)
    try:
        envelope.ParseFromString(payload)
    except ParseError:
        raise DecodeError("not a protobuf envelope of seedance.v1") from None


# ---- client to server


def _to_pb(message: Outgoing) -> pb.ClientEnvelope | pb.ServerEnvelope:  # noqa: PLR0911 - one return a message
    match message:
        case Delta() | CodedDelta() | Flush() | Error():
            return pb.ServerEnvelope(frame=_frame_to_pb(message))
        case Ack():
            pairs = [pb.Processed(stream_id=s, frame_id=f) for s, f in message.processed]
            return pb.ClientEnvelope(ack=pb.Ack(processed=pairs))
        case Submit():
            return pb.ClientEnvelope(submit=_submit_to_pb(message))
        case Cancel():
            cancel = pb.Cancel(sequence_id=message.sequence_id, stream_id=message.stream_id)
            return pb.ClientEnvelope(cancel=cancel)
        case Hello():
            hello = pb.Hello(
                minor_version=message.minor_version,
                sdk_name=message.sdk_name,
                sdk_version=message.sdk_version,
                capabilities=message.capabilities,
            )
            return pb.ClientEnvelope(hello=hello)
        case Bye():
            return pb.ClientEnvelope(bye=pb.Bye())
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


def _submit_to_pb(message: Submit) -> pb.Submit:
    conversation = token_ids = None
    if message.messages is not None:
        turns = [pb.ChatMessage(role=m.role, content=m.content, name=m.name) for m in message.messages]
        conversation = pb.Conversation(messages=turns)
    if message.token_ids is not None:
        token_ids = pb.TokenIds(ids=message.token_ids)
    sampling = message.sampling
    return pb.Submit(
        sequence_id=message.sequence_id,
        idempotency_key=message.idempotency_key,
        model=message.model,
        conversation=conversation,
        prompt=message.prompt,
        token_ids=token_ids,
        sampling=None if sampling == Sampling() else _sampling_to_pb(sampling),
        durability=None if message.durability is None else _DURABILITY_TO_PB[message.durability],
        deadline_ms=message.deadline_ms,
        parse_special=message.parse_special,
    )


def _sampling_to_pb(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
    )


def _submit_from_pb(submit: pb.Submit) -> Submit | InvalidSubmit:
    which = submit.WhichOneof("input")
    messages = None
    if which == "conversation":
        messages = tuple(
            ChatMessage(
                role=turn.role,
                content=turn.content if turn.HasField("content") else None,
                name=turn.name if turn.HasField("name") else None,
            )
            for turn in submit.conversation.messages
        )
    durability = None
    if submit.HasField("durability"):
        durability = _DURABILITY_FROM_PB.get(submit.durability)
        if durability is None and submit.sequence_id:
            reason = f"no durability {submit.durability} in this minor version"
            return InvalidSubmit(sequence_id=submit.sequence_id, field="durability", reason=reason)
    message = Submit(
        sequence_id=submit.sequence_id,
        idempotency_key=submit.idempotency_key,
        model=submit.model if submit.HasField("model") else None,
        messages=messages,
        prompt=submit.prompt if which == "prompt" else None,
        token_ids=tuple(submit.token_ids.ids) if which == "token_ids" else None,
        sampling=_sampling_from_pb(submit.sampling),
        durability=durability,
        deadline_ms=submit.deadline_ms if submit.HasField("deadline_ms") else None,
        parse_special=submit.parse_special,
    )
    return check_submit(message)


def _sampling_from_pb(sampling: pb.Sampling) -> Sampling:
    present = {descriptor.name for descriptor, _ in sampling.ListFields()}
    return Sampling(
        temperature=sampling.temperature if "temperature" in present else None,
        top_p=sampling.top_p if "top_p" in present else None,
        top_k=sampling.top_k if "top_k" in present else None,
        min_p=sampling.min_p if "min_p" in present else None,
        seed=sampling.seed if "seed" in present else None,
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        max_tokens=sampling.max_tokens if "max_tokens" in present else None,
        min_tokens=sampling.min_tokens if "min_tokens" in present else None,
        ignore_eos=sampling.ignore_eos,
        repetition_penalty=sampling.repetition_penalty if "repetition_penalty" in present else None,
        presence_penalty=sampling.presence_penalty if "presence_penalty" in present else None,
        frequency_penalty=sampling.frequency_penalty if "frequency_penalty" in present else None,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs if "top_logprobs" in present else None,
    )


# ---- server to client


def _frame_to_pb(frame: Outgoing) -> pb.Frame:
    match frame:
        case Delta() | CodedDelta():
            return pb.Frame(
                stream_id=frame.stream_id,
                id=frame.id,
                type=pb.FRAME_TYPE_DELTA,
                epoch=frame.epoch,
                offset=frame.offset,
                text=frame.text if isinstance(frame, Delta) else None,
                difference=frame.difference if isinstance(frame, CodedDelta) else None,
                token_count=None if frame.token_count == 1 else frame.token_count,
                logprobs=[_logprob_to_pb(logprob) for logprob in frame.logprobs],
            )
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
        case _:
            raise TypeError("not a frame")


def _frame_from_pb(frame: pb.Frame) -> Delta | CodedDelta | Flush | Error:
    message: Delta | CodedDelta | Flush | Error
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
    return pb.Final(
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
        stop_text=final.stop if isinstance(final.stop, str) else None,
        stop_token_id=final.stop if isinstance(final.stop, int) else None,
    )


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
