"""Frames and requests as bytes in a journal."""

from functools import partial

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from seedance_wire.errors import DecodeError, LocalProtocolError
from seedance_wire.messages import Bye, Delta, Frame, Sampling, Submit, UserEvent
from seedance_wire.protobuf_codec import ProtobufCodec
from seedance_wire.stored_form import (
    dump_events,
    dump_frame,
    dump_request,
    dump_submit,
    load_events,
    load_frame,
    load_submit,
    request_fingerprint,
)
from tests.strategies import coded_deltas, frames, from_one, submits, user_events

SUBMIT = Submit(
    sequence_id=1, idempotency_key=b"k" * 16, prompt="p", sampling=Sampling(logit_bias={1: 1, 2: 2})
)
FRAME = Delta(stream_id=1, id=2, epoch=3, offset=4, text="שלום")


@given(frame=frames, epoch=from_one)
def test_frame_comes_back_in_the_epoch_of_who_sends_it(frame: Frame, epoch: int) -> None:
    """All else is as it was, and the stored bytes do not depend on the epoch."""
    stored = dump_frame(frame)
    assert load_frame(stored, epoch=epoch) == evolve(frame, epoch=epoch)
    assert dump_frame(evolve(frame, epoch=epoch)) == stored


@given(submit=submits())
def test_request_comes_back_as_it_was(submit: Submit) -> None:
    """Whole, with its numbers; its fingerprint can be had with it."""
    assert load_submit(dump_submit(submit)) == submit
    assert dump_request(submit) == (dump_submit(submit), request_fingerprint(submit))


@given(reported=st.lists(user_events, min_size=1, max_size=3).map(tuple))
def test_events_come_back_as_they_were(reported: tuple[UserEvent, ...]) -> None:
    """In their order."""
    assert load_events(dump_events(reported)) == reported


def test_stored_form_of_events_refuses_other_messages() -> None:
    """A BYE is sound, and no events."""
    with pytest.raises(DecodeError):
        load_events(ProtobufCodec().encode((Bye(),)))


@given(stored=st.binary(max_size=60))
def test_stored_form_raises_only_decode_error(stored: bytes) -> None:
    """A damaged journal is an error that says so."""
    for load in (partial(load_frame, epoch=1), load_submit, load_events):
        try:
            load(stored)
        except DecodeError:
            continue


@given(frame=coded_deltas)
def test_stored_frame_has_its_text_whole(frame: object) -> None:
    """Differences mean nothing without the frames before them."""
    envelope = ProtobufCodec().encode((frame,))  # type: ignore[arg-type]
    stored = envelope[3:] if len(envelope) > 129 else envelope[2:]
    with pytest.raises(DecodeError):
        load_frame(stored, epoch=1)


def test_stored_form_refuses_what_the_wire_would_refuse() -> None:
    """What could not be sent is not kept."""
    with pytest.raises(LocalProtocolError):
        dump_frame(evolve(FRAME, text="\ud800"))
    with pytest.raises(LocalProtocolError):
        dump_submit(evolve(SUBMIT, idempotency_key=b""))
    with pytest.raises(LocalProtocolError):
        request_fingerprint(evolve(SUBMIT, prompt=None))
    with pytest.raises(DecodeError):
        load_frame(dump_frame(FRAME), epoch=0)
    with pytest.raises(DecodeError, match="UTF-8"):
        load_submit(dump_submit(SUBMIT) + b"\x2a\x01\xff")


@given(submit=submits(), sequence_id=from_one, key=st.binary(min_size=16, max_size=64))
def test_fingerprint_is_of_what_the_answer_depends_on(submit: Submit, sequence_id: int, key: bytes) -> None:
    """Attempts of one request have one fingerprint."""
    again = evolve(submit, sequence_id=sequence_id, idempotency_key=key, deadline_ms=5, traceparent=None)
    assert request_fingerprint(again) == request_fingerprint(submit)
    assert len(request_fingerprint(submit)) == 32


def test_fingerprint_does_not_depend_on_the_order_of_biases() -> None:
    """A mapping has none."""
    turned = evolve(SUBMIT, sampling=Sampling(logit_bias={2: 2, 1: 1}))
    assert request_fingerprint(turned) == request_fingerprint(SUBMIT)


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "q"},
        {"model": ""},
        {"sampling": Sampling(seed=0)},
        {"continues": 1},
        {"allow_fingerprint_change": True},
        {"parse_special": True},
    ],
)
def test_fingerprint_tells_other_requests_apart(other: dict[str, object]) -> None:
    """Another answer, another fingerprint."""
    assert request_fingerprint(evolve(SUBMIT, **other)) != request_fingerprint(SUBMIT)


def test_stored_frame_is_pinned() -> None:
    """Journals outlive versions: these bytes must be read for ever."""
    assert dump_frame(FRAME).hex() == "08011002180128043208d7a9d79cd795d79d"
