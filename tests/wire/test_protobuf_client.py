"""A client's messages in protobuf."""

import math

import attrs
import pytest
from hypothesis import given

from seedance_wire import protobuf_client
from seedance_wire import seedance_pb2 as pb
from seedance_wire.envelope import InvalidSubmit
from seedance_wire.errors import DecodeError
from seedance_wire.messages import Event, Sampling, Submit, UserEvent
from seedance_wire.protobuf_client import client_envelope, client_message
from tests.strategies import any_float, submits

KEY = b"k" * 16


def readable(message: Submit) -> str:
    """The message as it reads: NaN equals nothing, but reads the same. The order of the biases is free."""
    biases = sorted(message.sampling.logit_bias.items(), key=repr)
    return repr(attrs.evolve(message, sampling=attrs.evolve(message.sampling, logit_bias={}))) + repr(biases)


@given(submits(numbers=any_float))
def test_submit_carries_every_float_to_the_servers_validation(message: Submit) -> None:
    """NaN and infinities pass: the server refuses them by name."""
    decoded = client_message(client_envelope(message))
    assert isinstance(decoded, Submit)
    assert readable(decoded) == readable(message)


def test_submit_tells_absent_from_zero() -> None:
    """Zero is a choice, absence leaves it to the server."""
    zeros = Sampling(temperature=0.0, top_k=0, seed=0, max_tokens=0, top_logprobs=0)
    message = Submit(sequence_id=1, idempotency_key=KEY, prompt="", sampling=zeros, deadline_ms=0, model="")
    assert client_message(client_envelope(message)) == message
    bare = Submit(sequence_id=1, idempotency_key=KEY, prompt="")
    assert client_message(client_envelope(bare)) == bare
    assert math.isfinite(zeros.temperature or 0.0)


@pytest.mark.parametrize(
    ("submit", "field"),
    [
        (pb.Submit(sequence_id=7, idempotency_key=KEY), "messages"),
        (pb.Submit(sequence_id=7, prompt="p"), "idempotency_key"),
        (pb.Submit(sequence_id=7, idempotency_key=KEY, prompt="p", durability=9), "durability"),  # type: ignore[arg-type]
        (pb.Submit(sequence_id=7, idempotency_key=KEY, prompt="p", durability=0), "durability"),  # type: ignore[arg-type]
    ],
)
def test_submit_with_a_wrong_body_is_answerable(submit: pb.Submit, field: str) -> None:
    """The connection stays; the server refuses the request by its number."""
    message = client_message(pb.ClientEnvelope(submit=submit))
    assert isinstance(message, InvalidSubmit)
    assert (message.sequence_id, message.field) == (7, field)


@pytest.mark.parametrize(
    "envelope",
    [
        pb.ClientEnvelope(submit=pb.Submit(idempotency_key=KEY, prompt="p")),
        pb.ClientEnvelope(submit=pb.Submit(durability=9)),  # type: ignore[arg-type]
        pb.ClientEnvelope(cancel=pb.Cancel(sequence_id=1)),
        pb.ClientEnvelope(ack=pb.Ack()),
        pb.ClientEnvelope(),
    ],
)
def test_client_message_refuses_what_cannot_be_answered(envelope: pb.ClientEnvelope) -> None:
    """Without a sequence id, a stream id or any content there is nothing to refuse by name."""
    with pytest.raises(DecodeError):
        client_message(envelope)


@pytest.mark.parametrize(
    ("submit", "field"),
    [
        (pb.Submit(conversation=pb.Conversation(messages=[pb.ChatMessage()] * 125_000)), "messages"),
        (pb.Submit(prompt="p", sampling=pb.Sampling(stop=[""] * 125_000)), "stop"),
        (pb.Submit(prompt="p", sampling=pb.Sampling(stop_token_ids=[1] * 250_000)), "stop_token_ids"),
        (
            pb.Submit(prompt="p", sampling=pb.Sampling(logit_bias=dict.fromkeys(range(1025), 0))),
            "logit_bias",
        ),
    ],
)
def test_submit_with_too_many_entries_is_refused_before_any_is_built(
    submit: pb.Submit, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message must not stop its reader: empty entries are counted, not made into objects."""
    submit.sequence_id, submit.idempotency_key = 7, KEY
    monkeypatch.setattr(protobuf_client, "ChatMessage", None)
    monkeypatch.setattr(protobuf_client, "Sampling", None)
    message = client_message(pb.ClientEnvelope(submit=submit))
    assert isinstance(message, InvalidSubmit)
    assert (message.sequence_id, message.field) == (7, field)


@pytest.mark.parametrize(
    "envelope",
    [
        pb.ClientEnvelope(ack=pb.Ack(processed=[pb.Processed(stream_id=1, frame_id=1)] * 1025)),
        pb.ClientEnvelope(hello=pb.Hello(capabilities=[""] * 1025)),
    ],
)
def test_client_message_counts_before_it_builds_anything(
    envelope: pb.ClientEnvelope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no field to refuse ends the connection, as soon."""
    monkeypatch.setattr(protobuf_client, "Ack", None)
    monkeypatch.setattr(protobuf_client, "Hello", None)
    with pytest.raises(DecodeError, match="1025"):
        client_message(envelope)


def test_events_travel_in_whichever_form_is_shorter() -> None:
    """A batch of like events is packed; what could not be unpacked for its size is sent whole."""
    few = (UserEvent(timestamp=1, user_id=1, action="a"),)
    many = tuple(UserEvent(timestamp=n, user_id=1, action="click", payload=b"page") for n in range(50))
    large = tuple(UserEvent(timestamp=n, user_id=1, action="a", payload=bytes(65_536)) for n in range(5))
    for events, is_packed in ((few, False), (many, True), (large, False)):
        message = Event(sequence_id=1, batch_id=1, events=events)
        envelope = client_envelope(message)
        assert envelope.event.HasField("packed") == is_packed
        assert client_message(envelope) == message


def test_events_that_come_twice_in_one_message_are_an_error() -> None:
    """Whole and packed: nobody could say which counts."""
    events = [pb.UserEvent(action="a")]
    envelope = pb.ClientEnvelope(event=pb.Event(sequence_id=1, batch_id=1, events=events, packed=b"\x01"))
    with pytest.raises(DecodeError):
        client_message(envelope)
