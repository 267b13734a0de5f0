"""A server's messages as JSON objects, for the JSON and the raw encoding.

Each carries ``type``, but for the frames, which are in `json_frames.py`. Unknown fields are skipped, as a
newer server may add some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .errors import DecodeError
from .json_fields import Fields, Json, integer, present
from .json_frames import failure_from_json, frame_from_json, frame_to_json
from .messages import (
    Accepted,
    AckLevel,
    Checkpoint,
    Delta,
    Durability,
    Error,
    Flow,
    FlowAction,
    Flush,
    GoAway,
    Limits,
    Phase,
    Refused,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    ServerMessage,
    Status,
    StreamCheckpoint,
    Welcome,
)
from .validity import InvalidFieldError, check_received

__all__ = ["server_message_from_json", "server_message_to_json"]

_DURABILITIES = {durability.value: durability for durability in Durability}
_ACK_LEVELS = {level.value: level for level in AckLevel}
_FLOW_ACTIONS = {action.value: action for action in FlowAction}
_PHASES = {phase.value: phase for phase in Phase}
_FAILURES = {failure.value: failure for failure in ResumeFailure}


def server_message_to_json(message: ServerMessage) -> dict[str, Json]:
    """Returns the JSON object of a server's message."""
    if isinstance(message, Delta | Flush | Error):
        return frame_to_json(message)
    return _WRITERS[type(message)](message)


def server_message_from_json(value: Json) -> ServerMessage:
    """Returns the message of a JSON object.

    Raises:
        DecodeError: It is none.
    """
    message: ServerMessage
    try:
        fields = Fields(value)
        if fields.optional("type") is None and fields.optional("t") is not None:
            message = frame_from_json(fields)
        else:
            message = fields.choice("type", _READERS)(fields)
    except InvalidFieldError as error:
        raise DecodeError(str(error)) from None
    check_received(message)
    return message


def _accepted_to_json(message: Accepted) -> dict[str, Json]:
    return {
        "type": "accepted",
        "sequence_id": integer(message.sequence_id),
        "stream_id": integer(message.stream_id),
        "durability": message.durability.value,
        "replayed": message.replayed,
    } | _available(message)


def _refused_to_json(message: Refused) -> dict[str, Json]:
    return present(
        type="refused",
        sequence_id=integer(message.sequence_id),
        code=message.code.value,
        message=message.message,
        field=message.field,
        retryable=message.retryable,
        retry_after_ms=integer(message.retry_after_ms),
    )


def _goaway_to_json(message: GoAway) -> dict[str, Json]:
    return present(
        type="goaway",
        reason=message.reason,
        reconnect_to=message.reconnect_to,
        deadline_ms=integer(message.deadline_ms),
    )


def _flow_to_json(message: Flow) -> dict[str, Json]:
    return {
        "type": "flow",
        "stream_id": integer(message.stream_id),
        "action": message.action.value,
        "window": message.window,
    }


def _status_to_json(message: Status) -> dict[str, Json]:
    return present(
        type="status",
        stream_id=integer(message.stream_id),
        phase=message.phase.value,
        position=message.position,
        estimated_wait_ms=integer(message.estimated_wait_ms),
        tokens_done=integer(message.tokens_done),
        tokens_total=integer(message.tokens_total),
    )


def _resumed_to_json(message: Resumed) -> dict[str, Json]:
    return {
        "type": "resumed",
        "stream_id": integer(message.stream_id),
        "next_id": integer(message.next_id),
        "epoch": integer(message.epoch),
        "live": message.live,
    } | _available(message)


def _rejected_to_json(message: ResumeRejected) -> dict[str, Json]:
    return {
        "type": "resume_rejected",
        "stream_id": integer(message.stream_id),
        "code": message.code.value,
    } | _available(message)


def _available(message: Accepted | Resumed | ResumeRejected) -> dict[str, Json]:
    return {
        "first_available_id": integer(message.first_available_id),
        "last_id": integer(message.last_id),
    }


def _checkpoint_to_json(message: Checkpoint) -> dict[str, Json]:
    return {
        "type": "checkpoint",
        "sequence_id": integer(message.sequence_id),
        "timestamp": integer(message.timestamp_ms),
        "ack_level": message.ack_level.value,
        "streams": [
            {"s": integer(stream.stream_id), "id": integer(stream.frame_id), "digest": stream.digest.hex()}
            for stream in message.streams
        ],
    }


def _welcome_to_json(message: Welcome) -> dict[str, Json]:
    limits = message.limits
    return {
        "type": "welcome",
        "session_id": message.session_id,
        "epoch": integer(message.epoch),
        "last_sequence_id": integer(message.last_sequence_id),
        "model": message.model,
        "limits": {
            "max_message_bytes": integer(limits.max_message_bytes),
            "max_streams": limits.max_streams,
            "max_context_tokens": integer(limits.max_context_tokens),
        }
        | present(
            messages_per_second=limits.messages_per_second or None,
            message_burst=limits.message_burst or None,
        ),
        "minor_version": message.minor_version,
        "server_version": message.server_version,
        "capabilities": list(message.capabilities),
        "resume_token": message.resume_token.hex(),
        "session_present": message.session_present,
        "retention_ms": integer(message.retention_ms),
        "resume_window_ms": integer(message.resume_window_ms),
    }


def _welcome(fields: Fields) -> Welcome:
    limits = fields.object("limits")
    return Welcome(
        session_id=fields.text("session_id"),
        epoch=fields.integer("epoch"),
        last_sequence_id=fields.integer("last_sequence_id"),
        model=fields.text("model"),
        limits=Limits(
            max_message_bytes=limits.integer("max_message_bytes"),
            max_streams=limits.integer("max_streams"),
            max_context_tokens=limits.integer("max_context_tokens"),
            messages_per_second=limits.optional_number("messages_per_second") or 0.0,
            message_burst=limits.optional_integer("message_burst") or 0,
        ),
        minor_version=fields.optional_integer("minor_version") or 0,
        server_version=fields.optional_text("server_version") or "",
        capabilities=fields.texts("capabilities"),
        resume_token=fields.optional_hexadecimal("resume_token") or b"",
        session_present=fields.flag("session_present"),
        retention_ms=fields.optional_integer("retention_ms") or 0,
        resume_window_ms=fields.optional_integer("resume_window_ms") or 0,
    )


def _accepted(fields: Fields) -> Accepted:
    first = fields.optional_integer("first_available_id")
    return Accepted(
        sequence_id=fields.integer("sequence_id"),
        stream_id=fields.integer("stream_id"),
        durability=fields.choice("durability", _DURABILITIES),
        replayed=fields.flag("replayed"),
        first_available_id=1 if first is None else first,
        last_id=fields.optional_integer("last_id") or 0,
    )


def _resumed(fields: Fields) -> Resumed:
    return Resumed(
        stream_id=fields.integer("stream_id"),
        next_id=fields.integer("next_id"),
        epoch=fields.integer("epoch"),
        first_available_id=fields.integer("first_available_id"),
        last_id=fields.integer("last_id"),
        live=fields.flag("live"),
    )


def _resume_rejected(fields: Fields) -> ResumeRejected:
    return ResumeRejected(
        stream_id=fields.integer("stream_id"),
        code=fields.choice("code", _FAILURES),
        first_available_id=fields.integer("first_available_id"),
        last_id=fields.integer("last_id"),
    )


def _checkpoint(fields: Fields) -> Checkpoint:
    return Checkpoint(
        sequence_id=fields.integer("sequence_id"),
        timestamp_ms=fields.integer("timestamp"),
        ack_level=fields.choice("ack_level", _ACK_LEVELS),
        streams=tuple(
            StreamCheckpoint(
                stream_id=entry.integer("s"), frame_id=entry.integer("id"), digest=entry.hexadecimal("digest")
            )
            for entry in fields.objects("streams")
        ),
    )


def _flow(fields: Fields) -> Flow:
    return Flow(
        stream_id=fields.integer("stream_id"),
        action=fields.choice("action", _FLOW_ACTIONS),
        window=fields.integer("window"),
    )


def _status(fields: Fields) -> Status:
    return Status(
        stream_id=fields.integer("stream_id"),
        phase=fields.choice("phase", _PHASES),
        position=fields.optional_integer("position"),
        estimated_wait_ms=fields.optional_integer("estimated_wait_ms"),
        tokens_done=fields.optional_integer("tokens_done"),
        tokens_total=fields.optional_integer("tokens_total"),
    )


def _refused(fields: Fields) -> Refused:
    code, retryable, retry_after_ms = failure_from_json(fields)
    return Refused(
        sequence_id=fields.integer("sequence_id"),
        code=code,
        message=fields.text("message"),
        field=fields.optional_text("field"),
        retryable=retryable,
        retry_after_ms=retry_after_ms,
    )


def _goaway(fields: Fields) -> GoAway:
    return GoAway(
        reason=fields.text("reason"),
        reconnect_to=fields.optional_text("reconnect_to"),
        deadline_ms=fields.optional_integer("deadline_ms"),
    )


_WRITERS: Mapping[type, Callable[..., dict[str, Json]]] = {
    Accepted: _accepted_to_json,
    Checkpoint: _checkpoint_to_json,
    Flow: _flow_to_json,
    GoAway: _goaway_to_json,
    Refused: _refused_to_json,
    ResumeRejected: _rejected_to_json,
    Resumed: _resumed_to_json,
    Status: _status_to_json,
    Welcome: _welcome_to_json,
}
_READERS: Mapping[str, Callable[[Fields], ServerMessage]] = {
    "welcome": _welcome,
    "accepted": _accepted,
    "refused": _refused,
    "goaway": _goaway,
    "checkpoint": _checkpoint,
    "resumed": _resumed,
    "resume_rejected": _resume_rejected,
    "flow": _flow,
    "status": _status,
}
