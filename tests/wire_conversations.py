"""Ways into every state of a connection, for tests of the rules and of the machine that follows them."""

import pytest

from seedance_wire.messages import (
    Accepted,
    Ack,
    AckLevel,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Event,
    Final,
    FinishReason,
    Flow,
    FlowAction,
    Flush,
    Frame,
    GoAway,
    Hello,
    Limits,
    Message,
    Phase,
    Refused,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    StageTiming,
    Status,
    Submit,
    Usage,
    UserEvent,
    Welcome,
)
from seedance_wire.rules import (
    CLIENT_KINDS,
    ConnectionState,
    Kind,
    Role,
)
from seedance_wire.state import ProtocolState

roles = pytest.mark.parametrize("role", Role)
S = ConnectionState
EPOCH = 5
FINAL = Final(
    finish_reason=FinishReason.STOP,
    usage=Usage(prompt_tokens=1, completion_tokens=1),
    timing=StageTiming(),
    digest=b"d" * 32,
)


def submit(sequence_id: int) -> Submit:
    """A SUBMIT."""
    return Submit(sequence_id=sequence_id, idempotency_key=b"k" * 16, prompt="p")


def event(sequence_id: int) -> Event:
    """An EVENT."""
    return Event(sequence_id=sequence_id, batch_id=1, events=(UserEvent(timestamp=1, user_id=1, action="a"),))


def accepted(sequence_id: int, stream_id: int) -> Accepted:
    """Its answer."""
    return Accepted(sequence_id=sequence_id, stream_id=stream_id, durability=Durability.NONE)


def frame(kind: Kind, stream_id: int = 1, id_: int = 1, offset: int = 0, epoch: int = EPOCH) -> Frame:
    """A frame of this kind; a DELTA is one byte long."""
    numbering = {"stream_id": stream_id, "id": id_, "epoch": epoch, "offset": offset}
    if kind is Delta:
        return Delta(**numbering, text="a")
    if kind is Error:
        return Error(**numbering, code=ErrorCode.INTERNAL, message="m")
    return Flush(**numbering, final=FINAL if kind is Final else None)


WELCOME = Welcome(
    session_id="s",
    epoch=EPOCH,
    last_sequence_id=10,
    model="m",
    limits=Limits(max_message_bytes=1000, max_streams=2, max_context_tokens=9),
)


def advance(state: ProtocolState, *messages: Message) -> None:
    """Takes each message as an envelope of its own."""
    for message in messages:
        if isinstance(message, Delta | Flush | Error):
            size = len(message.text) if isinstance(message, Delta) else 0
            state.advance_frames(Role.SERVER, (message,), (size,))
        else:
            state.advance(Role.CLIENT if type(message) in CLIENT_KINDS else Role.SERVER, message)


def opened(role: Role) -> ProtocolState:
    """A connection after the handshake, whose next sequence id is 11."""
    state = ProtocolState(role, max_streams=4)
    advance(state, Hello(), WELCOME)
    return state


def streaming(role: Role) -> ProtocolState:
    """The same with stream 1, of which one DELTA was sent."""
    state = opened(role)
    advance(state, submit(11), accepted(11, 1), frame(Delta))
    return state


def resumed(stream_id: int, next_id: int) -> Resumed:
    """The good answer to RESUME."""
    return Resumed(
        stream_id=stream_id, next_id=next_id, epoch=EPOCH, first_available_id=1, last_id=9, live=True
    )


BUSY: list[Message] = [
    *(submit(11), submit(12), accepted(11, 1), frame(Delta)),
    *(submit(13), accepted(13, 3), Resume(stream_id=3, last_processed_id=0)),
]
REACH: dict[ConnectionState, list[Message]] = {
    S.START: [],
    S.GREETING: [Hello()],
    S.OPEN: [Hello(), WELCOME, *BUSY],
    S.DRAINING: [Hello(), WELCOME, *BUSY, GoAway(reason="")],
    S.CLOSED: [Hello(), WELCOME, *BUSY, Bye()],
}
NEXT: dict[Kind, Message] = {
    Hello: Hello(),
    Submit: submit(14),
    Cancel: Cancel(sequence_id=14, stream_id=1),
    Resume: Resume(stream_id=1, last_processed_id=1),
    Resumed: resumed(3, 1),
    ResumeRejected: ResumeRejected(stream_id=3, code=ResumeFailure.NOT_FOUND),
    Checkpoint: Checkpoint(sequence_id=13, timestamp_ms=0, ack_level=AckLevel.COMMITTED),
    Ack: Ack(processed=((1, 1),)),
    Event: event(14),
    Flow: Flow(stream_id=1, action=FlowAction.RUN, window=32),
    Status: Status(stream_id=1, phase=Phase.QUEUED),
    Bye: Bye(),
    Welcome: WELCOME,
    Accepted: accepted(12, 4),
    Refused: Refused(sequence_id=12, code=ErrorCode.OVERLOADED, message=""),
    GoAway: GoAway(reason=""),
    **{kind: frame(kind, id_=2, offset=1) for kind in (Delta, Flush, Final, Error)},
}
