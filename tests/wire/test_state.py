"""The machine that follows the rules: what it counts."""

from collections.abc import Callable

import pytest
from attrs import evolve

from seedance_wire.cursor import ReceiveCursor, Verdict
from seedance_wire.envelope import InvalidSubmit
from seedance_wire.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from seedance_wire.messages import (
    Accepted,
    Ack,
    AckLevel,
    Cancel,
    Checkpoint,
    Delta,
    Error,
    ErrorCode,
    Final,
    Frame,
    Hello,
    Message,
    Refused,
    Resume,
    Resumed,
    ResumeFailure,
    ResumeRejected,
)
from seedance_wire.rules import (
    MAX_PENDING,
    REMEMBERED_STREAMS,
    Role,
)
from seedance_wire.state import ProtocolState
from tests.wire_conversations import (
    EPOCH,
    NEXT,
    WELCOME,
    accepted,
    advance,
    event,
    frame,
    opened,
    resumed,
    roles,
    streaming,
    submit,
)


@roles
@pytest.mark.parametrize("sequence_id", [10, 12])
def test_state_wants_contiguous_sequence_ids(role: Role, sequence_id: int) -> None:
    """SUBMIT and CANCEL share one counter that rises by one from WELCOME's."""
    fault = LocalProtocolError if role is Role.CLIENT else RemoteProtocolError
    state = opened(role)
    with pytest.raises(fault):
        advance(state, submit(sequence_id))
    advance(state, submit(11), accepted(11, 1))
    with pytest.raises(fault):
        advance(state, Cancel(sequence_id=sequence_id + 1 + (sequence_id == 10) * -1, stream_id=1))
    advance(state, Cancel(sequence_id=12, stream_id=1), submit(13))


@roles
def test_state_counts_an_invalid_submit_as_a_submit(role: Role) -> None:
    """It is refused by its number, and the counter goes on."""
    state = opened(role)
    state.advance(Role.CLIENT, InvalidSubmit(sequence_id=11, field="f", reason="r"))
    advance(state, Refused(sequence_id=11, code=ErrorCode.INVALID_REQUEST, message=""), submit(12))
    assert state.pending_submits == 1


@roles
@pytest.mark.parametrize("answer", [accepted(11, 2), accepted(12, 1), NEXT[Refused], accepted(12, 0)])
def test_state_wants_one_answer_for_each_submit_and_rising_stream_ids(role: Role, answer: Message) -> None:
    """Answered twice, a number given out before, an answer to nothing."""
    state = opened(role)
    advance(state, submit(11), accepted(11, 1))
    if isinstance(answer, Accepted) and answer.sequence_id == 12:
        advance(state, submit(12))
    with pytest.raises(LocalProtocolError if role is Role.SERVER else RemoteProtocolError):
        advance(state, answer)


def test_state_holds_a_server_to_its_own_limit_of_streams() -> None:
    """A SUBMIT beyond is for the server to refuse; accepting it is the server's bug."""
    state = ProtocolState(Role.SERVER, max_streams=2)
    advance(state, Hello(), WELCOME)
    advance(state, submit(11), submit(12), submit(13), accepted(11, 1), accepted(12, 2))
    assert (state.open_streams, state.pending_submits) == (2, 1)
    with pytest.raises(LocalProtocolError):
        advance(state, accepted(13, 3))
    advance(state, Refused(sequence_id=13, code=ErrorCode.OVERLOADED, message=""))
    assert state.pending_submits == 0


@roles
def test_state_answers_an_event_once_by_refusal_or_checkpoint(role: Role) -> None:
    """What a CHECKPOINT covers is kept, so it can't be refused any more; nor can an EVENT be accepted."""
    state = opened(role)
    refused = Refused(sequence_id=12, code=ErrorCode.OVERLOADED, message="")
    advance(state, event(11), event(12))
    fault = RemoteProtocolError if role is Role.CLIENT else LocalProtocolError
    with pytest.raises(fault):
        advance(state, accepted(11, 1))
    advance(state, refused)
    with pytest.raises(fault):
        advance(state, refused)
    advance(state, Checkpoint(sequence_id=11, timestamp_ms=0, ack_level=AckLevel.COMMITTED))
    with pytest.raises(fault):
        advance(state, evolve(refused, sequence_id=11))


@pytest.mark.parametrize("said", [submit, event])
def test_state_bounds_what_is_unanswered(said: Callable[[int], Message]) -> None:
    """A client that floods faster than the server refuses is cut off for it."""
    state = opened(Role.SERVER)
    advance(state, *(said(11 + index) for index in range(MAX_PENDING)))
    with pytest.raises(RemoteProtocolError) as caught:
        advance(state, said(11 + MAX_PENDING))
    assert caught.value.close_code is CloseCode.QUOTA_EXCEEDED


@roles
@pytest.mark.parametrize(
    "wrong",
    [
        frame(Delta, id_=3, offset=1),
        frame(Delta, id_=1, offset=0),
        frame(Delta, id_=2, offset=0),
        frame(Delta, id_=2, offset=2),
        frame(Delta, id_=2, offset=1, epoch=EPOCH + 1),
        frame(Delta, id_=2, offset=1, epoch=EPOCH - 1),
        frame(Final, id_=3, offset=1),
        frame(Delta, stream_id=2),
    ],
)
def test_state_wants_frames_numbered_without_holes(role: Role, wrong: Frame) -> None:
    """Id, offset and epoch of each frame follow from the frame before it."""
    with pytest.raises(LocalProtocolError if role is Role.SERVER else RemoteProtocolError):
        advance(streaming(role), wrong)


@roles
def test_state_takes_a_batch_whole_or_not_at_all(role: Role) -> None:
    """A wrong frame at the end leaves no trace of the good ones before it."""
    state = streaming(role)
    good = (frame(Delta, id_=2, offset=1), frame(Final, id_=3, offset=2))
    with pytest.raises((LocalProtocolError, RemoteProtocolError)):
        state.advance_frames(Role.SERVER, (*good, frame(Delta, id_=4, offset=2)), (1, 0, 1))
    assert state.open_streams == 1
    state.advance_frames(Role.SERVER, good, (1, 0))
    assert state.open_streams == 0


@roles
@pytest.mark.parametrize("processed", [((1, 2),), ((2, 1),), ((1, 1), (1, 2))])
def test_state_refuses_an_ack_above_what_was_sent(role: Role, processed: tuple[tuple[int, int], ...]) -> None:
    """Nobody can have taken a frame that was not sent, of this stream or of one that never began."""
    with pytest.raises(LocalProtocolError if role is Role.CLIENT else RemoteProtocolError):
        advance(streaming(role), Ack(processed=processed))


@roles
def test_state_remembers_the_last_frame_of_ended_streams_for_a_while(role: Role) -> None:
    """Acks of ended streams are checked 256 streams back and tolerated before; no ended stream comes back."""
    state = opened(role)
    for index in range(REMEMBERED_STREAMS + 1):
        stream_id = index + 1
        advance(state, submit(11 + index), accepted(11 + index, stream_id), frame(Delta, stream_id))
        advance(state, frame(Final, stream_id, id_=2, offset=1))
    advance(state, Ack(processed=((2, 2), (1, 99))), Cancel(sequence_id=state.next_sequence_id, stream_id=1))
    with pytest.raises((LocalProtocolError, RemoteProtocolError)):
        advance(state, Ack(processed=((2, 3),)))
    with pytest.raises((LocalProtocolError, RemoteProtocolError)):
        advance(state, frame(Delta, 1))


@pytest.mark.parametrize(
    ("arriving", "verdict"),
    [
        (frame(Delta, id_=2, offset=1), Verdict.APPLY),
        (frame(Delta, id_=1), Verdict.DUPLICATE),
        (frame(Delta, id_=2, offset=1, epoch=EPOCH - 1), Verdict.STALE),
        (frame(Delta, stream_id=2, epoch=EPOCH - 1), Verdict.STALE),
    ],
)
def test_judge_drops_what_was_seen_or_is_of_a_former_epoch(arriving: Frame, verdict: Verdict) -> None:
    """The apply rule, with the streams that are known."""
    assert streaming(Role.CLIENT).judge(arriving) is verdict


def test_judge_drops_duplicates_of_an_ended_stream_and_refuses_what_follows_its_end() -> None:
    """Nothing new comes after the terminal frame."""
    state = streaming(Role.CLIENT)
    advance(state, frame(Error, id_=2, offset=1))
    assert state.judge(frame(Error, id_=2, offset=1)) is Verdict.DUPLICATE
    with pytest.raises(RemoteProtocolError, match="has ended"):
        state.judge(frame(Delta, id_=3, offset=1))
    with pytest.raises(RemoteProtocolError, match="never began"):
        state.judge(frame(Delta, stream_id=2))


def test_judge_raises_for_a_gap() -> None:
    """There is nothing to fetch the missing frame from."""
    with pytest.raises(RemoteProtocolError, match="frame 3"):
        streaming(Role.CLIENT).judge(frame(Delta, id_=3, offset=1))


def came_back(role: Role, last_sequence_id: int = 10) -> ProtocolState:
    """A connection whose session has streams 1 to 3 and kept the client's messages up to 10."""
    state = ProtocolState(role, max_streams=4)
    advance(state, Hello(session_id="s", resume_token=b"t"))
    state.know_streams(3)
    welcome = evolve(WELCOME, session_present=True, last_sequence_id=last_sequence_id)
    advance(state, welcome)
    return state


@roles
@pytest.mark.parametrize("hello", [Hello(), Hello(session_id="other", resume_token=b"t")])
def test_state_wants_a_welcome_back_only_to_the_session_that_was_named(role: Role, hello: Hello) -> None:
    """Nobody is put into a session that he did not ask for."""
    state = ProtocolState(role, max_streams=4)
    advance(state, hello)
    with pytest.raises(LocalProtocolError if role is Role.SERVER else RemoteProtocolError):
        advance(state, evolve(WELCOME, session_present=True))


@roles
def test_state_takes_repeats_of_what_the_server_has_before_anything_new(role: Role) -> None:
    """They keep their numbers, rise, may leave some out, and new numbers go on behind the server's last."""
    state = came_back(role)
    advance(state, submit(4), Cancel(sequence_id=7, stream_id=1), submit(10))
    assert state.next_sequence_id == 11
    advance(state, submit(11))
    fault = LocalProtocolError if role is Role.CLIENT else RemoteProtocolError
    for late in (8, 11, 13):
        with pytest.raises(fault):
            advance(state, submit(late))
    advance(state, submit(12), accepted(4, 4), evolve(accepted(10, 2), replayed=True))
    assert state.pending_submits == 2


@roles
@pytest.mark.parametrize("repeat", [3, 4, 0])
def test_state_wants_repeats_to_rise(role: Role, repeat: int) -> None:
    """A number comes once in each connection."""
    state = came_back(role)
    advance(state, submit(4))
    with pytest.raises(LocalProtocolError if role is Role.CLIENT else RemoteProtocolError):
        advance(state, submit(repeat))


@roles
def test_state_knows_the_streams_of_earlier_connections(role: Role) -> None:
    """They may be cancelled and acknowledged, none of their frames comes, and their numbers are used."""
    state = came_back(role)
    advance(state, Cancel(sequence_id=11, stream_id=3), Ack(processed=((2, 5),)), submit(12))
    fault = LocalProtocolError if role is Role.SERVER else RemoteProtocolError
    for wrong in (frame(Delta, stream_id=3), accepted(12, 3)):
        with pytest.raises(fault):
            advance(state, wrong)
    advance(state, accepted(12, 4))


@roles
def test_state_begins_nothing_for_a_replayed_request(role: Role) -> None:
    """Its frames come after RESUMED, like those of every stream that did not begin here."""
    state = came_back(role)
    advance(state, submit(11), evolve(accepted(11, 7), replayed=True))
    assert (state.open_streams, state.pending_submits) == (0, 0)
    with pytest.raises(LocalProtocolError if role is Role.SERVER else RemoteProtocolError):
        advance(state, frame(Delta, stream_id=7))
    advance(state, Resume(stream_id=7, last_processed_id=0), resumed(7, 1), frame(Delta, stream_id=7))


def test_server_goes_on_at_whatever_offset_its_first_frame_has() -> None:
    """RESUMED names an id; the next frame settles the offset, and from there it adds up."""
    state = came_back(Role.SERVER)
    advance(state, Resume(stream_id=3, last_processed_id=4), resumed(3, 5))
    for wrong in (frame(Delta, 3, 4, 99), frame(Delta, 3, 6, 99)):
        with pytest.raises(LocalProtocolError):
            advance(state, wrong)
    advance(state, frame(Delta, 3, 5, 99))
    with pytest.raises(LocalProtocolError):
        advance(state, frame(Delta, 3, 6, 99))
    advance(state, frame(Delta, 3, 6, 100), Ack(processed=((3, 4), (3, 6))))
    with pytest.raises(RemoteProtocolError):
        advance(state, Ack(processed=((3, 7),)))


def test_client_goes_on_at_the_offset_that_it_has() -> None:
    """What it applied before decides what fits, not what the server says next."""
    state = came_back(Role.CLIENT)
    state.know_position(3, ReceiveCursor(EPOCH - 1, 4, 40))
    with pytest.raises(LocalProtocolError, match="4 was the last"):
        advance(state, Resume(stream_id=3, last_processed_id=5))
    advance(state, Resume(stream_id=3, last_processed_id=4))
    assert state.judge(frame(Delta, 3, 5, 40)) is Verdict.STALE
    advance(state, resumed(3, 5))
    assert state.judge(frame(Delta, 3, 5, 39)) is Verdict.GAP
    assert state.judge(frame(Delta, 3, 4, 30)) is Verdict.DUPLICATE
    assert state.judge(frame(Delta, 3, 5, 40)) is Verdict.APPLY
    advance(state, frame(Delta, 3, 5, 40))
    assert state.position(3) == ReceiveCursor(EPOCH, 5, 41)


@roles
@pytest.mark.parametrize(
    "wrong", [resumed(3, 6), resumed(3, 4), evolve(resumed(3, 5), epoch=EPOCH - 1), resumed(2, 5)]
)
def test_state_wants_resumed_to_answer_the_resume(role: Role, wrong: Resumed) -> None:
    """It goes on right behind the last frame processed, in the epoch of this connection."""
    state = came_back(role)
    state.know_position(3, ReceiveCursor(1, 4, 40))
    advance(state, Resume(stream_id=3, last_processed_id=4))
    with pytest.raises(LocalProtocolError if role is Role.SERVER else RemoteProtocolError):
        advance(state, wrong)


@roles
def test_frames_may_cross_with_resume_and_no_others(role: Role) -> None:
    """A server that has not read RESUME goes on; one that was sending nothing has nothing to go on with."""
    state = streaming(role)
    advance(state, Resume(stream_id=1, last_processed_id=1))
    advance(state, frame(Delta, id_=2, offset=1), frame(Final, id_=3, offset=2))
    fault = LocalProtocolError if role is Role.SERVER else RemoteProtocolError
    with pytest.raises(fault):
        advance(state, frame(Delta, id_=4, offset=2))
    again = came_back(role)
    advance(again, Resume(stream_id=2, last_processed_id=0))
    with pytest.raises(fault):
        advance(again, frame(Delta, stream_id=2))


@roles
def test_rejected_stream_can_be_asked_for_again_and_sends_nothing(role: Role) -> None:
    """A rejection is no violation, and leaves no trace but that."""
    state = came_back(role)
    rejected = ResumeRejected(stream_id=3, code=ResumeFailure.TRUNCATED)
    advance(state, Resume(stream_id=3, last_processed_id=0), rejected)
    with pytest.raises(LocalProtocolError if role is Role.SERVER else RemoteProtocolError):
        advance(state, rejected)
    advance(state, Resume(stream_id=3, last_processed_id=0), resumed(3, 1))


def test_state_bounds_streams_that_are_asked_for_again() -> None:
    """Whoever resumes everything that ever was is cut off for it."""
    state = came_back(Role.SERVER)
    advance(state, *(Resume(stream_id=1 + i, last_processed_id=0) for i in range(MAX_PENDING)))
    with pytest.raises(RemoteProtocolError) as caught:
        advance(state, Resume(stream_id=1 + MAX_PENDING, last_processed_id=0))
    assert caught.value.close_code is CloseCode.QUOTA_EXCEEDED
