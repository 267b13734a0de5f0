"""What a server keeps of frames, requests and events, in bytes that no connection and no encoding decided.

A frame is kept as `seedance.proto` has it, with its text whole and without its epoch: that is the sender's,
so a frame that is sent again carries the epoch of whoever sends it. A request is kept as its client sent it.
Fields may be added to the schema, so what was stored before reads the same for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from google.protobuf.message import DecodeError as ParseError

from . import seedance_pb2 as pb
from .envelope import CodedDelta
from .errors import DecodeError, LocalProtocolError
from .messages import Event, Frame, Submit, UserEvent
from .protobuf_client import client_envelope, client_message, submit_from_pb, submit_to_pb
from .protobuf_frames import frame_from_pb, frame_to_pb
from .validity import check_outgoing

__all__ = [
    "dump_events",
    "dump_frame",
    "dump_request",
    "dump_submit",
    "load_events",
    "load_frame",
    "load_submit",
    "request_fingerprint",
]

_OF_THE_ATTEMPT = ("sequence_id", "idempotency_key", "deadline_ms", "traceparent")
"""Fields of a request that say nothing of the answer."""


def dump_frame(frame: Frame) -> bytes:
    """Returns a frame's stored form; its epoch is no part of it.

    Raises:
        LocalProtocolError: A value is outside what the protocol allows.
    """
    check_outgoing(frame)
    try:
        return frame_to_pb(frame, has_epoch=False).SerializeToString()
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"{type(frame).__name__} cannot be stored: {error}") from error


def load_frame(stored: bytes, *, epoch: int) -> Frame:
    """Returns the frame of a stored form.

    Args:
        stored: What ``dump_frame`` made.
        epoch: Of whoever sends it now.

    Raises:
        DecodeError: It is no such thing.
    """
    written = pb.Frame()
    try:
        written.ParseFromString(stored)
        written.epoch = epoch
    except (ParseError, ValueError) as error:
        raise DecodeError(f"not a stored frame: {error}") from None
    frame = frame_from_pb(written)
    if isinstance(frame, CodedDelta):
        raise DecodeError("a stored frame has its text whole")
    return frame


def dump_submit(submit: Submit) -> bytes:
    """Returns a request's stored form, `load_submit` undoes it.

    Raises:
        LocalProtocolError: A value is outside what the protocol allows.
    """
    return _to_pb(submit).SerializeToString(deterministic=True)


def dump_request(submit: Submit) -> tuple[bytes, bytes]:
    """Returns what `dump_submit` and `request_fingerprint` do, of one look at the request.

    Raises:
        LocalProtocolError: A value is outside what the protocol allows.
    """
    written = _to_pb(submit)
    return written.SerializeToString(deterministic=True), _fingerprint(written)


def dump_events(events: Sequence[UserEvent]) -> bytes:
    """Returns the stored form of reported events, `load_events` undoes it.

    Raises:
        LocalProtocolError: A value is outside what the protocol allows.
    """
    event = Event(sequence_id=1, batch_id=1, events=tuple(events))
    check_outgoing(event)
    try:
        return client_envelope(event).SerializeToString()
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"events cannot be stored: {error}") from error


def load_events(stored: bytes) -> tuple[UserEvent, ...]:
    """Returns the events of a stored form.

    Raises:
        DecodeError: It is no such thing.
    """
    envelope = pb.ClientEnvelope()
    try:
        envelope.ParseFromString(stored)
    except ParseError as error:
        raise DecodeError(f"not stored events: {error}") from None
    if envelope.WhichOneof("message") != "event":
        raise DecodeError("not stored events")
    message = client_message(envelope)
    assert isinstance(message, Event)  # noqa: S101 - what was asked for
    return message.events


def load_submit(stored: bytes) -> Submit:
    """Returns the request of a stored form.

    Raises:
        DecodeError: It is no such thing.
    """
    written = pb.Submit()
    try:
        written.ParseFromString(stored)
    except ParseError as error:
        raise DecodeError(f"not a stored request: {error}") from None
    submit = submit_from_pb(written)
    if not isinstance(submit, Submit):
        raise DecodeError(f"not a stored request: {submit.field}: {submit.reason}")
    return submit


def request_fingerprint(submit: Submit) -> bytes:
    """Returns the 32 bytes that tell whether two SUBMITs ask for the same.

    What belongs to the attempt and not to the answer (sequence id, idempotency key, deadline, trace) does not
    count.

    Raises:
        LocalProtocolError: A value is outside what the protocol allows.
    """
    return _fingerprint(_to_pb(submit))


def _fingerprint(written: pb.Submit) -> bytes:
    for name in _OF_THE_ATTEMPT:
        written.ClearField(name)  # type: ignore[arg-type]
    return hashlib.sha256(written.SerializeToString(deterministic=True)).digest()


def _to_pb(submit: Submit) -> pb.Submit:
    check_outgoing(submit)
    try:
        return submit_to_pb(submit)
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"Submit cannot be stored: {error}") from error
