"""A server's messages in protobuf: `messages.py` <-> `seedance_pb2.ServerEnvelope`.

Field by field; the frames are in `protobuf_frames.py`. An enum value that this minor version does not know is
an error, because no server sends one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import seedance_pb2 as pb
from .envelope import (
    MAX_CHECKPOINT_ENTRIES,
    MAX_FRAMES,
    MAX_LOGPROB_ENTRIES,
    CodedDelta,
    FromServer,
    Outgoing,
    Pieces,
)
from .errors import DecodeError
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
from .protobuf_frames import ERROR_CODE_TO_PB, error_code_from_pb, frame_from_pb, frame_to_pb, meaning_of
from .validity import InvalidFieldError, check_count, check_received

__all__ = ["server_envelope", "server_messages"]

_DURABILITY_TO_PB = {d: pb.Durability.Value(f"DURABILITY_{d.name}") for d in Durability}
_DURABILITY_FROM_PB = {number: value for value, number in _DURABILITY_TO_PB.items()}
_ACK_LEVEL_TO_PB = {level: pb.AckLevel.Value(f"ACK_LEVEL_{level.name}") for level in AckLevel}
_ACK_LEVEL_FROM_PB = {number: level for level, number in _ACK_LEVEL_TO_PB.items()}
_FAILURE_TO_PB = {code: pb.ResumeFailure.Value(f"RESUME_FAILURE_{code.name}") for code in ResumeFailure}
_FAILURE_FROM_PB = {number: code for code, number in _FAILURE_TO_PB.items()}
_FLOW_ACTION_TO_PB = {action: pb.FlowAction.Value(f"FLOW_ACTION_{action.name}") for action in FlowAction}
_FLOW_ACTION_FROM_PB = {number: action for action, number in _FLOW_ACTION_TO_PB.items()}
_PHASE_TO_PB = {phase: pb.Phase.Value(f"PHASE_{phase.name}") for phase in Phase}
_PHASE_FROM_PB = {number: phase for phase, number in _PHASE_TO_PB.items()}


def server_envelope(messages: Sequence[Outgoing]) -> pb.ServerEnvelope:
    """Returns the envelope of a message, or of several frames.

    A value that does not fit raises TypeError or ValueError.
    """
    if len(messages) > 1:
        frames = [frame_to_pb(m) for m in messages if isinstance(m, Delta | CodedDelta | Flush | Error)]
        return pb.ServerEnvelope(frames=pb.FrameBatch(frames=frames))
    (message,) = messages
    if isinstance(message, Delta | CodedDelta | Flush | Error):
        return pb.ServerEnvelope(frame=frame_to_pb(message))
    if isinstance(message, Pieces):
        return _pieces_to_pb(message)
    try:
        name, write, _ = _MESSAGES[type(message)]
    except KeyError:
        raise TypeError("no message of a server's") from None
    return pb.ServerEnvelope(**{name: write(message)})


def server_messages(envelope: pb.ServerEnvelope) -> Sequence[FromServer]:
    """Returns the message of an envelope, or its frames.

    Raises:
        DecodeError: It holds none, or one with a value that the protocol forbids.
    """
    name = envelope.WhichOneof("message")
    if name == "frame":
        _check_logprobs((envelope.frame,))
        return (frame_from_pb(envelope.frame),)
    if name == "frames":
        frames = envelope.frames.frames
        if not 1 <= len(frames) <= MAX_FRAMES:
            raise DecodeError(f"a batch holds 1 to {MAX_FRAMES} frames, not {len(frames)}")
        _check_logprobs(frames)
        return [frame_from_pb(frame) for frame in frames]
    if name == "pieces":
        return (_pieces_from_pb(envelope.pieces),)
    if name is None:
        raise DecodeError("the envelope holds no message of a server's")
    try:
        check_count("Checkpoint.streams", len(envelope.checkpoint.streams), MAX_CHECKPOINT_ENTRIES)
        check_count("Welcome.capabilities", len(envelope.welcome.capabilities))
    except InvalidFieldError as error:
        raise DecodeError(str(error)) from None
    message = _READERS[name](getattr(envelope, name))
    check_received(message)
    return (message,)


def _pieces_to_pb(message: Pieces) -> pb.ServerEnvelope:
    envelope = pb.ServerEnvelope()
    pieces = envelope.pieces  # filled where it is: a message given to a constructor is copied
    pieces.number = message.number
    pieces.data = message.data
    if message.stream_ids:
        pieces.stream_ids.extend(message.stream_ids)
    if message.sizes:
        pieces.sizes.extend(message.sizes)
    if message.token_counts:
        pieces.token_counts.extend(message.token_counts)
    if message.frames:
        pieces.frames.extend(map(frame_to_pb, message.frames))
    return envelope


def _pieces_from_pb(pieces: pb.Pieces) -> Pieces:
    lists = (pieces.stream_ids, pieces.sizes, pieces.token_counts, pieces.frames)
    if max(map(len, lists)) > MAX_FRAMES:  # before anything is built of them
        raise DecodeError(f"over {MAX_FRAMES} frames")
    _check_logprobs(pieces.frames)
    message = Pieces(
        number=pieces.number,
        stream_ids=tuple(pieces.stream_ids),
        data=pieces.data,
        sizes=tuple(pieces.sizes),
        token_counts=tuple(pieces.token_counts),
        frames=tuple(map(frame_from_pb, pieces.frames)),
    )
    check_received(message)
    return message


def _check_logprobs(frames: Sequence[pb.Frame]) -> None:
    """Counts before anything is built of them; an empty one takes two bytes on the wire."""
    count = sum(len(frame.logprobs) for frame in frames)
    if count <= MAX_LOGPROB_ENTRIES:
        count += sum(len(logprob.top) for frame in frames for logprob in frame.logprobs)
    if count > MAX_LOGPROB_ENTRIES:
        raise DecodeError(f"over {MAX_LOGPROB_ENTRIES} tokens and alternatives in logprobs")


def _goaway_to_pb(message: GoAway) -> pb.GoAway:
    return pb.GoAway(
        reason=message.reason, reconnect_to=message.reconnect_to, deadline_ms=message.deadline_ms
    )


def _goaway_from_pb(goaway: pb.GoAway) -> GoAway:
    return GoAway(
        reason=goaway.reason,
        reconnect_to=goaway.reconnect_to if goaway.HasField("reconnect_to") else None,
        deadline_ms=goaway.deadline_ms if goaway.HasField("deadline_ms") else None,
    )


def _refused_to_pb(message: Refused) -> pb.Refused:
    return pb.Refused(
        sequence_id=message.sequence_id,
        code=ERROR_CODE_TO_PB[message.code],
        message=message.message,
        field=message.field,
        retryable=message.retryable,
        retry_after_ms=message.retry_after_ms,
    )


def _refused_from_pb(refused: pb.Refused) -> Refused:
    return Refused(
        sequence_id=refused.sequence_id,
        code=error_code_from_pb(refused.code),
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
            messages_per_second=message.limits.messages_per_second,
            message_burst=message.limits.message_burst,
        ),
        minor_version=message.minor_version,
        server_version=message.server_version,
        capabilities=message.capabilities,
        resume_token=message.resume_token,
        session_present=message.session_present,
        retention_ms=message.retention_ms,
        resume_window_ms=message.resume_window_ms,
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
            messages_per_second=welcome.limits.messages_per_second,
            message_burst=welcome.limits.message_burst,
        ),
        minor_version=welcome.minor_version,
        server_version=welcome.server_version,
        capabilities=tuple(welcome.capabilities),
        resume_token=welcome.resume_token,
        session_present=welcome.session_present,
        retention_ms=welcome.retention_ms,
        resume_window_ms=welcome.resume_window_ms,
    )


def _accepted_to_pb(message: Accepted) -> pb.Accepted:
    return pb.Accepted(
        sequence_id=message.sequence_id,
        stream_id=message.stream_id,
        durability=_DURABILITY_TO_PB[message.durability],
        replayed=message.replayed,
        first_available_id=None if message.first_available_id == 1 else message.first_available_id,
        last_id=message.last_id,
    )


def _accepted_from_pb(accepted: pb.Accepted) -> Accepted:
    return Accepted(
        sequence_id=accepted.sequence_id,
        stream_id=accepted.stream_id,
        durability=meaning_of(accepted.durability, _DURABILITY_FROM_PB, "durability"),
        replayed=accepted.replayed,
        first_available_id=accepted.first_available_id if accepted.HasField("first_available_id") else 1,
        last_id=accepted.last_id,
    )


def _resumed_to_pb(message: Resumed) -> pb.Resumed:
    return pb.Resumed(
        stream_id=message.stream_id,
        next_id=message.next_id,
        epoch=message.epoch,
        first_available_id=message.first_available_id,
        last_id=message.last_id,
        live=message.live,
    )


def _resumed_from_pb(resumed: pb.Resumed) -> Resumed:
    return Resumed(
        stream_id=resumed.stream_id,
        next_id=resumed.next_id,
        epoch=resumed.epoch,
        first_available_id=resumed.first_available_id,
        last_id=resumed.last_id,
        live=resumed.live,
    )


def _rejected_to_pb(message: ResumeRejected) -> pb.ResumeRejected:
    return pb.ResumeRejected(
        stream_id=message.stream_id,
        code=_FAILURE_TO_PB[message.code],
        first_available_id=message.first_available_id,
        last_id=message.last_id,
    )


def _rejected_from_pb(rejected: pb.ResumeRejected) -> ResumeRejected:
    code = meaning_of(rejected.code, _FAILURE_FROM_PB, "resume failure")
    return ResumeRejected(
        stream_id=rejected.stream_id,
        code=code,
        first_available_id=rejected.first_available_id,
        last_id=rejected.last_id,
    )


def _checkpoint_to_pb(message: Checkpoint) -> pb.Checkpoint:
    return pb.Checkpoint(
        sequence_id=message.sequence_id,
        timestamp_ms=message.timestamp_ms,
        ack_level=_ACK_LEVEL_TO_PB[message.ack_level],
        streams=[
            pb.StreamCheckpoint(stream_id=s.stream_id, frame_id=s.frame_id, digest=s.digest)
            for s in message.streams
        ],
    )


def _checkpoint_from_pb(checkpoint: pb.Checkpoint) -> Checkpoint:
    level = meaning_of(checkpoint.ack_level, _ACK_LEVEL_FROM_PB, "ack level")
    return Checkpoint(
        sequence_id=checkpoint.sequence_id,
        timestamp_ms=checkpoint.timestamp_ms,
        ack_level=level,
        streams=tuple(
            StreamCheckpoint(stream_id=s.stream_id, frame_id=s.frame_id, digest=s.digest)
            for s in checkpoint.streams
        ),
    )


def _flow_to_pb(message: Flow) -> pb.Flow:
    action = _FLOW_ACTION_TO_PB[message.action]
    return pb.Flow(stream_id=message.stream_id, action=action, window=message.window)


def _flow_from_pb(flow: pb.Flow) -> Flow:
    action = meaning_of(flow.action, _FLOW_ACTION_FROM_PB, "flow action")
    return Flow(stream_id=flow.stream_id, action=action, window=flow.window)


def _status_to_pb(message: Status) -> pb.Status:
    return pb.Status(
        stream_id=message.stream_id,
        phase=_PHASE_TO_PB[message.phase],
        position=message.position,
        estimated_wait_ms=message.estimated_wait_ms,
        tokens_done=message.tokens_done,
        tokens_total=message.tokens_total,
    )


def _status_from_pb(status: pb.Status) -> Status:
    phase = meaning_of(status.phase, _PHASE_FROM_PB, "phase")
    return Status(
        stream_id=status.stream_id,
        phase=phase,
        position=status.position if status.HasField("position") else None,
        estimated_wait_ms=status.estimated_wait_ms if status.HasField("estimated_wait_ms") else None,
        tokens_done=status.tokens_done if status.HasField("tokens_done") else None,
        tokens_total=status.tokens_total if status.HasField("tokens_total") else None,
    )


_MESSAGES: Mapping[type, tuple[str, Callable[..., Any], Callable[..., ServerMessage]]] = {
    Accepted: ("accepted", _accepted_to_pb, _accepted_from_pb),
    Checkpoint: ("checkpoint", _checkpoint_to_pb, _checkpoint_from_pb),
    Flow: ("flow", _flow_to_pb, _flow_from_pb),
    GoAway: ("goaway", _goaway_to_pb, _goaway_from_pb),
    Refused: ("refused", _refused_to_pb, _refused_from_pb),
    ResumeRejected: ("resume_rejected", _rejected_to_pb, _rejected_from_pb),
    Resumed: ("resumed", _resumed_to_pb, _resumed_from_pb),
    Status: ("status", _status_to_pb, _status_from_pb),
    Welcome: ("welcome", _welcome_to_pb, _welcome_from_pb),
}
_READERS = {name: read for name, _, read in _MESSAGES.values()}
