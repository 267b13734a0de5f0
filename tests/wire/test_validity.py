"""Which values a message may hold."""

import attrs
import pytest
from hypothesis import given

from seedance_wire.envelope import CodedDelta, InvalidSubmit, Outgoing, Pieces
from seedance_wire.errors import DecodeError, LocalProtocolError
from seedance_wire.messages import (
    Accepted,
    Ack,
    Cancel,
    ChatMessage,
    Delta,
    Durability,
    Error,
    ErrorCode,
    Final,
    FinishReason,
    Flush,
    GoAway,
    Hello,
    Limits,
    Message,
    Refused,
    Sampling,
    StageTiming,
    Submit,
    TokenLogprob,
    Usage,
    Welcome,
)
from seedance_wire.validity import (
    InvalidFieldError,
    check,
    check_outgoing,
    check_received,
    check_sequence_id,
    check_submit,
)
from tests.strategies import client_messages, coded_deltas, server_messages

KEY = b"k" * 16
LIMITS = Limits(max_message_bytes=1, max_streams=1, max_context_tokens=1)
SUBMIT = Submit(sequence_id=1, idempotency_key=KEY, prompt="p")
FINAL = Final(
    finish_reason=FinishReason.STOP,
    usage=Usage(prompt_tokens=1, completion_tokens=1),
    timing=StageTiming(),
    digest=b"d" * 32,
)
NUMBERING = {"stream_id": 1, "id": 1, "epoch": 1, "offset": 0}
WELCOME = Welcome(session_id="s", epoch=1, last_sequence_id=0, model="m", limits=LIMITS)
ERROR = Error(**NUMBERING, code=ErrorCode.INTERNAL, message="m")
LONE = "a\ud800"


def logprob(**changes: object) -> Delta:
    """A DELTA with one log probability."""
    entry = attrs.evolve(TokenLogprob(token_id=1, text="a", logprob=-1.0), **changes)
    return Delta(**NUMBERING, text="a", logprobs=(entry,))


WRONG: list[tuple[Outgoing, str]] = [
    (Hello(minor_version=-1), "minor_version"),
    (Hello(minor_version=2**32), "minor_version"),
    (Hello(sdk_name=LONE), "sdk_name"),
    (Hello(sdk_version=LONE), "sdk_version"),
    (Hello(capabilities=("a", LONE)), "capabilities[1]"),
    (attrs.evolve(SUBMIT, sequence_id=0), "sequence_id"),
    (attrs.evolve(SUBMIT, sequence_id=2**64), "sequence_id"),
    (attrs.evolve(SUBMIT, idempotency_key=b"k" * 15), "idempotency_key"),
    (attrs.evolve(SUBMIT, idempotency_key=b"k" * 65), "idempotency_key"),
    (attrs.evolve(SUBMIT, model=LONE), "model"),
    (attrs.evolve(SUBMIT, prompt=None), "messages"),
    (attrs.evolve(SUBMIT, token_ids=(1,)), "token_ids"),
    (attrs.evolve(SUBMIT, prompt=LONE), "prompt"),
    (attrs.evolve(SUBMIT, prompt=None, token_ids=(1, 2**63)), "token_ids[1]"),
    (
        attrs.evolve(SUBMIT, prompt=None, messages=(ChatMessage(role=LONE, content=""),)),
        "messages[0].role",
    ),
    (
        attrs.evolve(SUBMIT, prompt=None, messages=(ChatMessage(role="", content=LONE),)),
        "messages[0].content",
    ),
    (
        attrs.evolve(SUBMIT, prompt=None, messages=(ChatMessage(role="", content="", name=LONE),)),
        "messages[0].name",
    ),
    (attrs.evolve(SUBMIT, deadline_ms=-1), "deadline_ms"),
    (attrs.evolve(SUBMIT, sampling=Sampling(top_k=2**63)), "top_k"),
    (attrs.evolve(SUBMIT, sampling=Sampling(seed=-(2**63) - 1)), "seed"),
    (attrs.evolve(SUBMIT, sampling=Sampling(max_tokens=2**63)), "max_tokens"),
    (attrs.evolve(SUBMIT, sampling=Sampling(min_tokens=2**63)), "min_tokens"),
    (attrs.evolve(SUBMIT, sampling=Sampling(top_logprobs=2**63)), "top_logprobs"),
    (attrs.evolve(SUBMIT, sampling=Sampling(stop=(LONE,))), "stop[0]"),
    (attrs.evolve(SUBMIT, sampling=Sampling(stop_token_ids=(2**63,))), "stop_token_ids[0]"),
    (attrs.evolve(SUBMIT, sampling=Sampling(logit_bias={2**63: 0.0})), "logit_bias[0]"),
    (Cancel(sequence_id=0, stream_id=1), "sequence_id"),
    (Cancel(sequence_id=1, stream_id=0), "stream_id"),
    (Ack(processed=()), "processed entries"),
    (Ack(processed=((1, 1),) * 1025), "processed entries"),
    (Ack(processed=((0, 1),)), "stream_id"),
    (Ack(processed=((1, 1), (1, 0))), "frame_id"),
    (attrs.evolve(WELCOME, session_id=LONE), "session_id"),
    (attrs.evolve(WELCOME, epoch=0), "epoch"),
    (attrs.evolve(WELCOME, last_sequence_id=-1), "last_sequence_id"),
    (attrs.evolve(WELCOME, model=LONE), "model"),
    (attrs.evolve(WELCOME, limits=attrs.evolve(LIMITS, max_message_bytes=0)), "limits.max_message_bytes"),
    (attrs.evolve(WELCOME, limits=attrs.evolve(LIMITS, max_streams=2**32)), "limits.max_streams"),
    (attrs.evolve(WELCOME, limits=attrs.evolve(LIMITS, max_context_tokens=0)), "limits.max_context_tokens"),
    (attrs.evolve(WELCOME, minor_version=2**32), "minor_version"),
    (attrs.evolve(WELCOME, server_version=LONE), "server_version"),
    (attrs.evolve(WELCOME, capabilities=(LONE,)), "capabilities[0]"),
    (Accepted(sequence_id=0, stream_id=1, durability=Durability.NONE), "sequence_id"),
    (Accepted(sequence_id=1, stream_id=0, durability=Durability.NONE), "stream_id"),
    (Refused(sequence_id=0, code=ErrorCode.INTERNAL, message=""), "sequence_id"),
    (Refused(sequence_id=1, code=ErrorCode.INTERNAL, message=LONE), "message"),
    (Refused(sequence_id=1, code=ErrorCode.INTERNAL, message="", field=LONE), "field"),
    (Refused(sequence_id=1, code=ErrorCode.INTERNAL, message="", retry_after_ms=-1), "retry_after_ms"),
    (GoAway(reason=LONE), "reason"),
    (GoAway(reason="", reconnect_to=LONE), "reconnect_to"),
    (GoAway(reason="", deadline_ms=2**64), "deadline_ms"),
    (Flush(**NUMBERING | {"stream_id": 0}), "stream_id"),
    (Flush(**NUMBERING | {"id": 0}), "id"),
    (Flush(**NUMBERING | {"epoch": 0}), "epoch"),
    (Flush(**NUMBERING | {"offset": 2**32}), "offset"),
    (Flush(**NUMBERING, final=attrs.evolve(FINAL, digest=b"d" * 31)), "final.digest"),
    (Flush(**NUMBERING, final=attrs.evolve(FINAL, stop=LONE)), "final.stop"),
    (Flush(**NUMBERING, final=attrs.evolve(FINAL, stop=2**63)), "final.stop"),
    (
        Flush(**NUMBERING, final=attrs.evolve(FINAL, usage=Usage(prompt_tokens=-1, completion_tokens=0))),
        "final.usage.prompt_tokens",
    ),
    (
        Flush(**NUMBERING, final=attrs.evolve(FINAL, usage=Usage(prompt_tokens=0, completion_tokens=-1))),
        "final.usage.completion_tokens",
    ),
    (
        Flush(
            **NUMBERING,
            final=attrs.evolve(FINAL, usage=Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=-1)),
        ),
        "final.usage.cached_tokens",
    ),
    (attrs.evolve(ERROR, message=LONE), "message"),
    (attrs.evolve(ERROR, retry_after_ms=-1), "retry_after_ms"),
    (Delta(**NUMBERING, text=LONE), "text"),
    (Delta(**NUMBERING, text="", token_count=-1), "token_count"),
    (CodedDelta(**NUMBERING | {"id": 0}, difference=b""), "id"),
    (CodedDelta(**NUMBERING, difference=b"", token_count=2**32), "token_count"),
    (logprob(token_id=2**63), "logprobs[0].token_id"),
    (logprob(text=LONE), "logprobs[0].text"),
    (logprob(top=((2**63, "", 0.0),)), "logprobs[0].top.token_id"),
    (logprob(top=((1, LONE, 0.0),)), "logprobs[0].top.text"),
]


@given(client_messages() | server_messages | coded_deltas)
def test_check_passes_whatever_the_protocol_allows(message: Outgoing) -> None:
    """The strategies make exactly what is valid."""
    check(message)
    check_outgoing(message)
    check_received(message)


@pytest.mark.parametrize(("message", "field"), WRONG, ids=lambda value: str(value)[:60])
def test_check_names_the_field_that_is_wrong(message: Outgoing, field: str) -> None:
    """Each value just outside its range is refused by the path of its field, as whoever's fault it is."""
    with pytest.raises(InvalidFieldError) as caught:
        check(message)
    assert caught.value.field == field
    with pytest.raises(LocalProtocolError):
        check_outgoing(message)
    with pytest.raises(DecodeError):
        check_received(message)


@pytest.mark.parametrize(
    ("message", "field"),
    [pair for pair in WRONG if isinstance(pair[0], Submit) and pair[1] != "sequence_id"],
    ids=lambda value: str(value)[:60],
)
def test_check_submit_tells_the_body_from_the_envelope(message: Submit, field: str) -> None:
    """A wrong body is answered, because it is known which request it is of."""
    result = check_submit(message)
    assert isinstance(result, InvalidSubmit)
    assert (result.sequence_id, result.field) == (message.sequence_id, field)


def test_check_submit_returns_a_sound_one() -> None:
    """Nothing is changed on the way."""
    assert check_submit(SUBMIT) is SUBMIT


@pytest.mark.parametrize("sequence_id", [0, -1, 2**64])
def test_check_sequence_id_refuses_what_cannot_be_answered(sequence_id: int) -> None:
    """A refusal needs the number of what it refuses."""
    with pytest.raises(DecodeError):
        check_sequence_id(sequence_id)
    with pytest.raises(DecodeError):
        check_submit(attrs.evolve(SUBMIT, sequence_id=sequence_id))


def test_check_covers_every_message() -> None:
    """A message without a rule would pass unchecked."""
    from typing import get_args

    from seedance_wire.validity import _RULES

    assert set(_RULES) == {*get_args(Message), CodedDelta, Pieces}
