"""The tables of who may say what when, followed by the machine, and shown in the specification."""

from itertools import product
from typing import get_args

import pytest

from seedance_wire.errors import LocalProtocolError, RemoteProtocolError
from seedance_wire.messages import (
    Ack,
    Bye,
    Cancel,
    Checkpoint,
    Delta,
    Error,
    Event,
    Final,
    Flow,
    FlowAction,
    Flush,
    GoAway,
    Hello,
    Message,
    Phase,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
    Status,
    Welcome,
)
from seedance_wire.rules import (
    CLIENT_KINDS,
    CONNECTION_TABLE,
    CROSSINGS,
    SERVER_KINDS,
    STREAM_TABLE,
    ConnectionState,
    Kind,
    Role,
    StreamState,
)
from seedance_wire.state import ProtocolState
from tests.wire_conversations import (
    NEXT,
    REACH,
    S,
    accepted,
    advance,
    frame,
    opened,
    resumed,
    roles,
    streaming,
    submit,
)


def test_tables_name_every_kind_and_nothing_leaves_an_end() -> None:
    """Each message is legal somewhere, no state goes on after CLOSED, and ERROR is entered by no message."""
    kinds = {*get_args(Message), Final}
    assert set(CLIENT_KINDS) | set(SERVER_KINDS) == kinds
    assert not set(CLIENT_KINDS) & set(SERVER_KINDS)
    assert {kind for _, kind in CONNECTION_TABLE} == kinds
    assert {state for state, _ in CONNECTION_TABLE}.isdisjoint({S.CLOSED, S.ERROR})
    assert S.ERROR not in {*CONNECTION_TABLE.values(), *CROSSINGS.values()}
    assert CROSSINGS.keys().isdisjoint(CONNECTION_TABLE)
    assert {kind for _, kind in STREAM_TABLE} == kinds - {Hello, Welcome, Event, Checkpoint, GoAway, Bye}


@roles
@pytest.mark.parametrize(("reached", "kind"), list(product(REACH, NEXT)), ids=lambda v: getattr(v, "name", v))
def test_state_follows_the_connection_table(role: Role, reached: ConnectionState, kind: Kind) -> None:
    """For each state, message and end: the table's next state, or the error of whoever said it."""
    state = ProtocolState(role, max_streams=4)
    advance(state, *REACH[reached])
    assert state.connection is reached
    sender = Role.CLIENT if kind in CLIENT_KINDS else Role.SERVER
    expected = CONNECTION_TABLE.get((reached, kind))
    if expected is None and sender is not role:
        expected = CROSSINGS.get((reached, kind))
    if expected is not None:
        advance(state, NEXT[kind])
        assert state.connection is expected
        return
    before = (state.next_sequence_id, state.open_streams, state.pending_submits)
    fault = LocalProtocolError if sender is role else RemoteProtocolError
    with pytest.raises(fault):
        advance(state, NEXT[kind])
    assert (state.next_sequence_id, state.open_streams, state.pending_submits) == before
    assert state.connection is reached


@roles
def test_failed_state_allows_nothing(role: Role) -> None:
    """ERROR is for good."""
    state = streaming(role)
    state.fail()
    for message in NEXT.values():
        with pytest.raises((LocalProtocolError, RemoteProtocolError)):
            advance(state, message)
    assert state.connection is S.ERROR


@roles
@pytest.mark.parametrize("kind", NEXT, ids=lambda kind: kind.__name__)
def test_state_refuses_words_of_the_other_end(role: Role, kind: Kind) -> None:
    """Who says what only the other end may say is at fault, in whichever state."""
    state = ProtocolState(role, max_streams=4)
    advance(state, *REACH[S.OPEN])
    speaker = Role.SERVER if kind in CLIENT_KINDS else Role.CLIENT
    message = NEXT[kind]
    fault = pytest.raises(LocalProtocolError if speaker is role else RemoteProtocolError)
    if isinstance(message, Delta | Flush | Error):
        with fault:
            state.advance_frames(speaker, (message,), (0,))
    else:
        with fault:
            state.advance(speaker, message)


STREAM_REACH: dict[StreamState, list[Message]] = {
    StreamState.IDLE: [],
    StreamState.ACCEPTED: [submit(11), accepted(11, 1)],
    StreamState.STREAMING: [submit(11), accepted(11, 1), frame(Delta)],
    StreamState.AWAY: [submit(11), accepted(11, 1), frame(Delta), frame(Final, id_=2, offset=1)],
    StreamState.RESUMING: [
        *(submit(11), accepted(11, 1), frame(Delta)),
        Resume(stream_id=1, last_processed_id=1),
    ],
}
STREAM_KINDS = (Delta, Flush, Final, Error, Cancel, Ack, Resume, Resumed, ResumeRejected, Flow, Status)
OPEN_STATES = {StreamState.ACCEPTED, StreamState.STREAMING, StreamState.RESUMING}


@roles
@pytest.mark.parametrize(
    ("reached", "kind"), list(product(STREAM_REACH, STREAM_KINDS)), ids=lambda v: getattr(v, "name", v)
)
def test_state_follows_the_stream_table(role: Role, reached: StreamState, kind: Kind) -> None:
    """For each state of a stream, message and end: as the table says, or the error of whoever said it."""
    state = opened(role)
    advance(state, *STREAM_REACH[reached])
    sent = sum(isinstance(message, Delta | Flush) for message in STREAM_REACH[reached])
    if kind is Ack:
        message: Message = Ack(processed=((1, max(sent, 1)),))
    elif kind is Cancel:
        message = Cancel(sequence_id=state.next_sequence_id, stream_id=1)
    elif kind is Resume:
        message = Resume(stream_id=1, last_processed_id=sent)
    elif kind is Resumed:
        message = resumed(1, sent + 1)
    elif kind is Flow:
        message = Flow(stream_id=1, action=FlowAction.PAUSE, window=16)
    elif kind is Status:
        message = Status(stream_id=1, phase=Phase.PREFILL)
    elif kind is ResumeRejected:
        message = ResumeRejected(stream_id=1, code=ResumeFailure.EXPIRED)
    else:
        message = frame(kind, id_=sent + 1, offset=min(sent, 1))
    following = STREAM_TABLE.get((reached, kind))
    if following is not None:
        advance(state, message)
        assert state.open_streams == (following in OPEN_STATES)
        return
    sender = Role.CLIENT if kind in CLIENT_KINDS else Role.SERVER
    with pytest.raises(LocalProtocolError if sender is role else RemoteProtocolError):
        advance(state, message)
