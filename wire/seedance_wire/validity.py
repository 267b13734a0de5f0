"""Which values a message may hold, whatever the encoding.

Asked by every codec in both directions: before encoding, where a violation is our own bug, and after
decoding, where it is the peer's. Only what the protocol itself says is checked here (widths, lengths, "from
1", Unicode); whether a temperature makes sense is the server's business. Types are assumed: a codec that
parses untyped text checks them itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from .envelope import (
    MAX_ACK_ENTRIES,
    MAX_CHECKPOINT_ENTRIES,
    MAX_LIST_ENTRIES,
    CodedDelta,
    InvalidSubmit,
    Outgoing,
)
from .errors import DecodeError, LocalProtocolError
from .messages import (
    Accepted,
    Ack,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Error,
    Final,
    Flush,
    GoAway,
    Hello,
    Refused,
    Resume,
    Resumed,
    ResumeRejected,
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

_U32 = 2**32 - 1
_U64 = 2**64 - 1
_I64 = 2**63
_DIGEST_BYTES = 32  # SHA-256
_PREFIX_BYTES = 16  # of one, where a whole one would be too long for what it is for
_MAX_TOKEN_BYTES = 256


class InvalidFieldError(ValueError):
    """A value that the protocol does not allow.

    Attributes:
        field: Path of the field within its message.
        reason: What is wrong, for people.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


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
        _number("sequence_id", sequence_id, 1, _U64)
    except InvalidFieldError as error:
        raise DecodeError(f"Submit.{error}") from None


def check_count(field: str, count: int, limit: int = MAX_LIST_ENTRIES) -> None:
    """Checks the length of a list; a codec asks before it builds the entries.

    Raises:
        InvalidFieldError: There are too many.
    """
    if count > limit:
        raise InvalidFieldError(field, f"must have at most {limit} entries, not {count}")


def _number(field: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidFieldError(field, f"must be from {low} to {high}")


def _text(field: str, value: str | None) -> None:
    if value is None or value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidFieldError(field, "holds a lone surrogate, which is no Unicode text") from None


def _size(field: str, value: bytes, low: int, high: int) -> None:
    if not low <= len(value) <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise InvalidFieldError(field, f"must have {wanted} bytes, not {len(value)}")


def _texts(field: str, values: Iterable[str]) -> None:
    for index, value in enumerate(values):
        _text(f"{field}[{index}]", value)


def _signed(field: str, values: Collection[int]) -> None:
    if not values or (min(values) >= -_I64 and max(values) < _I64):
        return
    for index, value in enumerate(values):
        if not -_I64 <= value < _I64:
            raise InvalidFieldError(f"{field}[{index}]", "does not fit 64 bits")


def _hello(message: Hello) -> None:
    _number("minor_version", message.minor_version, 0, _U32)
    _text("sdk_name", message.sdk_name)
    _text("sdk_version", message.sdk_version)
    check_count("capabilities", len(message.capabilities))
    _texts("capabilities", message.capabilities)
    _text("session_id", message.session_id)
    if (message.session_id is None) != (message.resume_token is None):
        raise InvalidFieldError("resume_token", "stands with session_id and only then")
    if message.resume_token is not None:
        _size("resume_token", message.resume_token, 1, _MAX_TOKEN_BYTES)


def _submit(message: Submit) -> None:
    _number("sequence_id", message.sequence_id, 1, _U64)
    _size("idempotency_key", message.idempotency_key, 16, 64)
    _text("model", message.model)
    inputs = [name for name in ("messages", "prompt", "token_ids") if getattr(message, name) is not None]
    if len(inputs) != 1:
        given = " and ".join(inputs) or "none"
        raise InvalidFieldError(
            inputs[-1] if inputs else "messages", f"give one of messages, prompt and token_ids, not {given}"
        )
    check_count("messages", len(message.messages or ()))
    for index, turn in enumerate(message.messages or ()):
        _text(f"messages[{index}].role", turn.role)
        _text(f"messages[{index}].content", turn.content)
        _text(f"messages[{index}].name", turn.name)
    _text("prompt", message.prompt)
    _signed("token_ids", message.token_ids or ())
    _number("deadline_ms", message.deadline_ms, 0, _U64)
    _number("continues", message.continues, 1, _U64)
    sampling = message.sampling
    for name in ("top_k", "seed", "max_tokens", "min_tokens", "top_logprobs"):
        _number(name, getattr(sampling, name), -_I64, _I64 - 1)
    for name in ("stop", "stop_token_ids", "logit_bias"):
        check_count(name, len(getattr(sampling, name)))
    _texts("stop", sampling.stop)
    _signed("stop_token_ids", sampling.stop_token_ids)
    _signed("logit_bias", sampling.logit_bias)


def _cancel(message: Cancel) -> None:
    _number("sequence_id", message.sequence_id, 1, _U64)
    _number("stream_id", message.stream_id, 1, _U64)


def _resume(message: Resume) -> None:
    _number("stream_id", message.stream_id, 1, _U64)
    _number("last_processed_id", message.last_processed_id, 0, _U64 - 1)
    if message.digest is not None:
        _size("digest", message.digest, _PREFIX_BYTES, _PREFIX_BYTES)


def _ack(message: Ack) -> None:
    _number("processed entries", len(message.processed), 1, MAX_ACK_ENTRIES)
    for stream_id, frame_id in message.processed:
        _number("stream_id", stream_id, 1, _U64)
        _number("frame_id", frame_id, 1, _U64)


def _welcome(message: Welcome) -> None:
    _text("session_id", message.session_id)
    _number("epoch", message.epoch, 1, _U64)
    _number("last_sequence_id", message.last_sequence_id, 0, _U64)
    _text("model", message.model)
    _number("limits.max_message_bytes", message.limits.max_message_bytes, 1, _U64)
    _number("limits.max_streams", message.limits.max_streams, 1, _U32)
    _number("limits.max_context_tokens", message.limits.max_context_tokens, 1, _U64)
    if not 0 <= message.limits.messages_per_second < math.inf:  # NaN is neither
        raise InvalidFieldError("limits.messages_per_second", "must be finite and not negative")
    _number("limits.message_burst", message.limits.message_burst, 0, _U32)
    _number("minor_version", message.minor_version, 0, _U32)
    _text("server_version", message.server_version)
    check_count("capabilities", len(message.capabilities))
    _texts("capabilities", message.capabilities)
    _size("resume_token", message.resume_token, 0, _MAX_TOKEN_BYTES)
    _number("retention_ms", message.retention_ms, 0, _U64)
    _number("resume_window_ms", message.resume_window_ms, 0, _U64)


def _accepted(message: Accepted) -> None:
    _number("sequence_id", message.sequence_id, 1, _U64)
    _number("stream_id", message.stream_id, 1, _U64)
    _available(message)


def _available(message: Accepted | Resumed | ResumeRejected) -> None:
    _number("first_available_id", message.first_available_id, 1, _U64)
    _number("last_id", message.last_id, 0, _U64)


def _resumed(message: Resumed) -> None:
    _number("stream_id", message.stream_id, 1, _U64)
    _number("next_id", message.next_id, 1, _U64)
    _number("epoch", message.epoch, 1, _U64)
    _available(message)


def _resume_rejected(message: ResumeRejected) -> None:
    _number("stream_id", message.stream_id, 1, _U64)
    _available(message)


def _checkpoint(message: Checkpoint) -> None:
    _number("sequence_id", message.sequence_id, 0, _U64)
    _number("timestamp_ms", message.timestamp_ms, 0, _U64)
    _number("streams entries", len(message.streams), 0, MAX_CHECKPOINT_ENTRIES)
    for stream in message.streams:
        _number("stream_id", stream.stream_id, 1, _U64)
        _number("frame_id", stream.frame_id, 1, _U64)
        _size("digest", stream.digest, _PREFIX_BYTES, _PREFIX_BYTES)


def _refused(message: Refused) -> None:
    _number("sequence_id", message.sequence_id, 1, _U64)
    _text("message", message.message)
    _text("field", message.field)
    _number("retry_after_ms", message.retry_after_ms, 0, _U64)


def _goaway(message: GoAway) -> None:
    _text("reason", message.reason)
    _text("reconnect_to", message.reconnect_to)
    _number("deadline_ms", message.deadline_ms, 0, _U64)


def _numbering(frame: Delta | CodedDelta | Flush | Error) -> None:
    _number("stream_id", frame.stream_id, 1, _U64)
    _number("id", frame.id, 1, _U64)
    _number("epoch", frame.epoch, 1, _U64)
    _number("offset", frame.offset, 0, _U32)


def _coded_delta(frame: Delta | CodedDelta) -> None:
    _numbering(frame)
    _number("token_count", frame.token_count, 0, _U32)
    for index, logprob in enumerate(frame.logprobs):
        _logprob(f"logprobs[{index}]", logprob)


def _logprob(field: str, logprob: TokenLogprob) -> None:
    _number(f"{field}.token_id", logprob.token_id, -_I64, _I64 - 1)
    _text(f"{field}.text", logprob.text)
    for token_id, text, _ in logprob.top:
        _number(f"{field}.top.token_id", token_id, -_I64, _I64 - 1)
        _text(f"{field}.top.text", text)


def _delta(frame: Delta) -> None:
    _coded_delta(frame)
    _text("text", frame.text)


def _flush(frame: Flush) -> None:
    _numbering(frame)
    if frame.final is not None:
        _final(frame.final)


def _final(final: Final) -> None:
    _number("final.usage.prompt_tokens", final.usage.prompt_tokens, 0, _U64)
    _number("final.usage.completion_tokens", final.usage.completion_tokens, 0, _U64)
    _number("final.usage.cached_tokens", final.usage.cached_tokens, 0, _U64)
    _size("final.digest", final.digest, _DIGEST_BYTES, _DIGEST_BYTES)
    if isinstance(final.stop, str):
        _text("final.stop", final.stop)
    else:
        _number("final.stop", final.stop, -_I64, _I64 - 1)


def _error(frame: Error) -> None:
    _numbering(frame)
    _text("message", frame.message)
    _number("retry_after_ms", frame.retry_after_ms, 0, _U64)


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
    Flush: _flush,
    GoAway: _goaway,
    Hello: _hello,
    Refused: _refused,
    Resume: _resume,
    ResumeRejected: _resume_rejected,
    Resumed: _resumed,
    Submit: _submit,
    Welcome: _welcome,
}
