"""Which values a message may hold, whatever the encoding.

Asked by every codec in both directions: before encoding, where a violation is our own bug, and after
decoding, where it is the peer's. Only what the protocol itself says is checked here (widths, lengths, "from
1", Unicode); whether a temperature makes sense is the server's business. Types are assumed: a codec that
parses untyped text checks them itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .envelope import (
    MAX_ACK_ENTRIES,
    MAX_ACTION_BYTES,
    MAX_CHECKPOINT_ENTRIES,
    MAX_EVENTS,
    MAX_FRAMES,
    MAX_PAYLOAD_BYTES,
    CodedDelta,
    InvalidSubmit,
    Outgoing,
    Pieces,
)
from .errors import DecodeError, LocalProtocolError
from .field_rules import (
    I64,
    U32,
    U64,
    InvalidFieldError,
    check_count,
    check_number,
    check_signed,
    check_size,
    check_text,
    check_texts,
    check_traceparent,
)
from .messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Error,
    Event,
    Final,
    Flow,
    Flush,
    GoAway,
    Hello,
    Refused,
    Resume,
    Resumed,
    ResumeRejected,
    Status,
    Submit,
    TokenLogprob,
    Welcome,
)

__all__ = [
    "InvalidFieldError",
    "check",
    "check_count",
    "check_outgoing",
    "check_received",
    "check_sequence_id",
    "check_submit",
]

_I32 = 2**31
_DIGEST_BYTES = 32  # SHA-256
_PREFIX_BYTES = 16  # of one, where a whole one would be too long for what it is for
_MAX_TOKEN_BYTES = 256


def check(message: Outgoing) -> None:
    """Checks every value of ``message``.

    Raises:
        InvalidFieldError: One is outside what the protocol allows.
    """
    _RULES[type(message)](message)


def check_outgoing(message: Outgoing) -> None:
    """Checks a message of our own.

    Raises:
        LocalProtocolError: A value is outside what the protocol allows.
    """
    try:
        check(message)
    except InvalidFieldError as error:
        raise LocalProtocolError(f"{type(message).__name__}.{error}") from None


def check_received(message: Outgoing) -> None:
    """Checks a message of the peer's, other than SUBMIT.

    Raises:
        DecodeError: A value is outside what the protocol allows.
    """
    try:
        check(message)
    except InvalidFieldError as error:
        raise DecodeError(f"{type(message).__name__}.{error}") from None


def check_submit(message: Submit) -> Submit | InvalidSubmit:
    """Checks a client's SUBMIT, whose sequence id must be sound for the rest to be answered.

    Raises:
        DecodeError: The sequence id is not sound.
    """
    check_sequence_id(message.sequence_id)
    try:
        _submit(message)
    except InvalidFieldError as error:
        return InvalidSubmit(sequence_id=message.sequence_id, field=error.field, reason=error.reason)
    return message


def check_sequence_id(sequence_id: int) -> None:
    """Checks the one field of a SUBMIT that a refusal needs.

    Raises:
        DecodeError: It is not sound.
    """
    try:
        check_number("sequence_id", sequence_id, 1, U64)
    except InvalidFieldError as error:
        raise DecodeError(f"Submit.{error}") from None


def _hello(message: Hello) -> None:
    check_number("minor_version", message.minor_version, 0, U32)
    check_text("sdk_name", message.sdk_name)
    check_text("sdk_version", message.sdk_version)
    check_count("capabilities", len(message.capabilities))
    check_texts("capabilities", message.capabilities)
    check_text("session_id", message.session_id)
    if (message.session_id is None) != (message.resume_token is None):
        raise InvalidFieldError("resume_token", "stands with session_id and only then")
    if message.resume_token is not None:
        check_size("resume_token", message.resume_token, 1, _MAX_TOKEN_BYTES)


def _submit(message: Submit) -> None:
    check_number("sequence_id", message.sequence_id, 1, U64)
    check_size("idempotency_key", message.idempotency_key, 16, 64)
    check_text("model", message.model)
    inputs = [name for name in ("messages", "prompt", "token_ids") if getattr(message, name) is not None]
    if len(inputs) != 1:
        given = " and ".join(inputs) or "none"
        raise InvalidFieldError(
            inputs[-1] if inputs else "messages", f"give one of messages, prompt and token_ids, not {given}"
        )
    check_count("messages", len(message.messages or ()))
    for index, turn in enumerate(message.messages or ()):
        check_text(f"messages[{index}].role", turn.role)
        check_text(f"messages[{index}].content", turn.content)
        check_text(f"messages[{index}].name", turn.name)
    check_text("prompt", message.prompt)
    check_signed("token_ids", message.token_ids or ())
    check_number("deadline_ms", message.deadline_ms, 0, U64)
    check_number("continues", message.continues, 1, U64)
    check_traceparent("traceparent", message.traceparent)
    sampling = message.sampling
    for name in ("top_k", "seed", "max_tokens", "min_tokens", "top_logprobs"):
        check_number(name, getattr(sampling, name), -I64, I64 - 1)
    for name in ("stop", "stop_token_ids", "logit_bias"):
        check_count(name, len(getattr(sampling, name)))
    check_texts("stop", sampling.stop)
    check_text("json_schema", sampling.json_schema)
    check_text("regex", sampling.regex)
    check_signed("stop_token_ids", sampling.stop_token_ids)
    check_signed("logit_bias", sampling.logit_bias)


def _cancel(message: Cancel) -> None:
    check_number("sequence_id", message.sequence_id, 1, U64)
    check_number("stream_id", message.stream_id, 1, U64)


def _resume(message: Resume) -> None:
    check_number("stream_id", message.stream_id, 1, U64)
    check_number("last_processed_id", message.last_processed_id, 0, U64 - 1)
    if message.digest is not None:
        check_size("digest", message.digest, _PREFIX_BYTES, _PREFIX_BYTES)
    check_number("taken_id", message.taken_id, 0, message.last_processed_id)


def _ack(message: Ack) -> None:
    check_number("processed entries", len(message.processed), 1, MAX_ACK_ENTRIES)
    for stream_id, frame_id in message.processed:
        check_number("stream_id", stream_id, 1, U64)
        check_number("frame_id", frame_id, 1, U64)


def _event(message: Event) -> None:
    check_number("sequence_id", message.sequence_id, 1, U64)
    check_number("batch_id", message.batch_id, 1, U64)
    check_number("events entries", len(message.events), 1, MAX_EVENTS)
    for index, event in enumerate(message.events):
        check_number(f"events[{index}].timestamp", event.timestamp, 0, U64)
        check_number(f"events[{index}].user_id", event.user_id, -_I32, _I32 - 1)
        check_text(f"events[{index}].action", event.action)
        check_size(f"events[{index}].action", event.action.encode(), 0, MAX_ACTION_BYTES)
        check_size(f"events[{index}].payload", event.payload, 0, MAX_PAYLOAD_BYTES)


def _welcome(message: Welcome) -> None:
    check_text("session_id", message.session_id)
    check_number("epoch", message.epoch, 1, U64)
    check_number("last_sequence_id", message.last_sequence_id, 0, U64)
    check_text("model", message.model)
    check_number("limits.max_message_bytes", message.limits.max_message_bytes, 1, U64)
    check_number("limits.max_streams", message.limits.max_streams, 1, U32)
    check_number("limits.max_context_tokens", message.limits.max_context_tokens, 1, U64)
    if not 0 <= message.limits.messages_per_second < math.inf:  # NaN is neither
        raise InvalidFieldError("limits.messages_per_second", "must be finite and not negative")
    check_number("limits.message_burst", message.limits.message_burst, 0, U32)
    check_number("minor_version", message.minor_version, 0, U32)
    check_text("server_version", message.server_version)
    check_count("capabilities", len(message.capabilities))
    check_texts("capabilities", message.capabilities)
    check_size("resume_token", message.resume_token, 0, _MAX_TOKEN_BYTES)
    check_number("retention_ms", message.retention_ms, 0, U64)
    check_number("resume_window_ms", message.resume_window_ms, 0, U64)


def _accepted(message: Accepted) -> None:
    check_number("sequence_id", message.sequence_id, 1, U64)
    check_number("stream_id", message.stream_id, 1, U64)
    _available(message)


def _available(message: Accepted | Resumed | ResumeRejected) -> None:
    check_number("first_available_id", message.first_available_id, 1, U64)
    check_number("last_id", message.last_id, 0, U64)


def _resumed(message: Resumed) -> None:
    check_number("stream_id", message.stream_id, 1, U64)
    check_number("next_id", message.next_id, 1, U64)
    check_number("epoch", message.epoch, 1, U64)
    _available(message)


def _resume_rejected(message: ResumeRejected) -> None:
    check_number("stream_id", message.stream_id, 1, U64)
    _available(message)


def _checkpoint(message: Checkpoint) -> None:
    check_number("sequence_id", message.sequence_id, 0, U64)
    check_number("timestamp_ms", message.timestamp_ms, 0, U64)
    check_number("streams entries", len(message.streams), 0, MAX_CHECKPOINT_ENTRIES)
    for stream in message.streams:
        check_number("stream_id", stream.stream_id, 1, U64)
        check_number("frame_id", stream.frame_id, 1, U64)
        check_size("digest", stream.digest, _PREFIX_BYTES, _PREFIX_BYTES)


def _refused(message: Refused) -> None:
    check_number("sequence_id", message.sequence_id, 1, U64)
    check_text("message", message.message)
    check_text("field", message.field)
    check_number("retry_after_ms", message.retry_after_ms, 0, U64)


def _flow(message: Flow) -> None:
    check_number("stream_id", message.stream_id, 1, U64)
    check_number("window", message.window, 0, U32)


def _status(message: Status) -> None:
    check_number("stream_id", message.stream_id, 1, U64)
    check_number("position", message.position, 0, U32)
    for name in ("estimated_wait_ms", "tokens_done", "tokens_total"):
        check_number(name, getattr(message, name), 0, U64)


def _goaway(message: GoAway) -> None:
    check_text("reason", message.reason)
    check_text("reconnect_to", message.reconnect_to)
    check_number("deadline_ms", message.deadline_ms, 0, U64)


def _numbering(frame: Delta | CodedDelta | Flush | Error) -> None:
    check_number("stream_id", frame.stream_id, 1, U64)
    check_number("id", frame.id, 1, U64)
    check_number("epoch", frame.epoch, 1, U64)
    check_number("offset", frame.offset, 0, U32)


def _coded_delta(frame: Delta | CodedDelta) -> None:
    _numbering(frame)
    check_number("token_count", frame.token_count, 0, U32)
    for index, logprob in enumerate(frame.logprobs):
        _logprob(f"logprobs[{index}]", logprob)


def _logprob(field: str, logprob: TokenLogprob) -> None:
    check_number(f"{field}.token_id", logprob.token_id, -I64, I64 - 1)
    check_text(f"{field}.text", logprob.text)
    for token_id, text, _ in logprob.top:
        check_number(f"{field}.top.token_id", token_id, -I64, I64 - 1)
        check_text(f"{field}.top.text", text)


def _delta(frame: Delta) -> None:
    _coded_delta(frame)
    check_text("text", frame.text)


def _pieces(message: Pieces) -> None:
    check_number("number", message.number, 0, 127)
    lists = (message.stream_ids, message.sizes, message.token_counts, message.frames)
    check_count("pieces", max(map(len, lists)), MAX_FRAMES)
    # How large the entries are is left to protobuf, the only encoding that has this message.
    if message.sizes and sum(size >> 1 for size in message.sizes) != len(message.data):
        raise InvalidFieldError("sizes", "must add up to the bytes of data")
    for frame in message.frames:
        check(frame)


def _flush(frame: Flush) -> None:
    _numbering(frame)
    if frame.final is not None:
        _final(frame.final)


def _final(final: Final) -> None:
    check_number("final.usage.prompt_tokens", final.usage.prompt_tokens, 0, U64)
    check_number("final.usage.completion_tokens", final.usage.completion_tokens, 0, U64)
    check_number("final.usage.cached_tokens", final.usage.cached_tokens, 0, U64)
    check_size("final.digest", final.digest, _DIGEST_BYTES, _DIGEST_BYTES)
    if isinstance(final.stop, str):
        check_text("final.stop", final.stop)
    else:
        check_number("final.stop", final.stop, -I64, I64 - 1)


def _error(frame: Error) -> None:
    _numbering(frame)
    check_text("message", frame.message)
    check_number("retry_after_ms", frame.retry_after_ms, 0, U64)


def _bye(message: Bye) -> None:
    del message  # nothing in it


_RULES: Mapping[type, Callable[..., None]] = {
    Accepted: _accepted,
    Ack: _ack,
    Bye: _bye,
    Cancel: _cancel,
    Checkpoint: _checkpoint,
    CodedDelta: _coded_delta,
    Delta: _delta,
    Error: _error,
    Event: _event,
    Flow: _flow,
    Flush: _flush,
    GoAway: _goaway,
    Hello: _hello,
    Pieces: _pieces,
    Refused: _refused,
    Resume: _resume,
    ResumeRejected: _resume_rejected,
    Resumed: _resumed,
    Status: _status,
    Submit: _submit,
    Welcome: _welcome,
}
