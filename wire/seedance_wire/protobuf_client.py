"""A client's messages in protobuf: `messages.py` <-> `seedance_pb2.ClientEnvelope`.

Field by field, with no rule of its own but presence: an absent optional field is None.
"""

from __future__ import annotations

from . import seedance_pb2 as pb
from .envelope import MAX_ACK_ENTRIES, MAX_EVENTS, FromClient, InvalidSubmit
from .errors import DecodeError
from .event_delta import MAX_UNPACKED_BYTES, pack_events, unpack_events
from .messages import (
    Ack,
    Bye,
    Cancel,
    ChatMessage,
    ClientMessage,
    Durability,
    Event,
    Hello,
    OnDisconnect,
    Resume,
    Sampling,
    Submit,
    UserEvent,
)
from .validity import (
    InvalidFieldError,
    check_count,
    check_received,
    check_sequence_id,
    check_submit,
)

__all__ = ["client_envelope", "client_message", "submit_from_pb", "submit_to_pb"]

_DURABILITY_TO_PB = {d: pb.Durability.Value(f"DURABILITY_{d.name}") for d in Durability}
_DURABILITY_FROM_PB = {number: value for value, number in _DURABILITY_TO_PB.items()}
_ON_DISCONNECT_TO_PB = {o: pb.OnDisconnect.Value(f"ON_DISCONNECT_{o.name}") for o in OnDisconnect}
_ON_DISCONNECT_FROM_PB = {number: value for value, number in _ON_DISCONNECT_TO_PB.items()}
_UNKNOWN = "no value {} in this minor version"


def client_envelope(message: ClientMessage) -> pb.ClientEnvelope:
    """Returns the envelope of a message; a value that does not fit raises TypeError or ValueError."""
    match message:
        case Ack():
            pairs = [pb.Processed(stream_id=s, frame_id=f) for s, f in message.processed]
            return pb.ClientEnvelope(ack=pb.Ack(processed=pairs))
        case Submit():
            return pb.ClientEnvelope(submit=submit_to_pb(message))
        case Cancel():
            cancel = pb.Cancel(sequence_id=message.sequence_id, stream_id=message.stream_id)
            return pb.ClientEnvelope(cancel=cancel)
        case Resume():
            resume = pb.Resume(
                stream_id=message.stream_id,
                last_processed_id=message.last_processed_id,
                digest=message.digest,
                taken_id=message.taken_id,
            )
            return pb.ClientEnvelope(resume=resume)
        case Event():
            return pb.ClientEnvelope(event=_event_to_pb(message))
        case Hello() | Bye():
            return _greeting_envelope(message)


def _greeting_envelope(message: Hello | Bye) -> pb.ClientEnvelope:
    if isinstance(message, Bye):
        return pb.ClientEnvelope(bye=pb.Bye())
    hello = pb.Hello(
        minor_version=message.minor_version,
        sdk_name=message.sdk_name,
        sdk_version=message.sdk_version,
        capabilities=message.capabilities,
        session_id=message.session_id,
        resume_token=message.resume_token,
    )
    return pb.ClientEnvelope(hello=hello)


def client_message(envelope: pb.ClientEnvelope) -> FromClient:
    """Returns the message of an envelope.

    Raises:
        DecodeError: It holds none, or one with a value that the protocol forbids.
    """
    message: FromClient
    try:
        check_count("Ack.processed", len(envelope.ack.processed), MAX_ACK_ENTRIES)
        check_count("Event.events", len(envelope.event.events), MAX_EVENTS)
        check_count("Hello.capabilities", len(envelope.hello.capabilities))
    except InvalidFieldError as error:
        raise DecodeError(str(error)) from None
    match envelope.WhichOneof("message"):
        case "submit":
            return submit_from_pb(envelope.submit)
        case "ack":
            message = Ack(processed=tuple((p.stream_id, p.frame_id) for p in envelope.ack.processed))
        case "cancel":
            message = Cancel(sequence_id=envelope.cancel.sequence_id, stream_id=envelope.cancel.stream_id)
        case "hello":
            hello = envelope.hello
            message = Hello(
                minor_version=hello.minor_version,
                sdk_name=hello.sdk_name,
                sdk_version=hello.sdk_version,
                capabilities=tuple(hello.capabilities),
                session_id=hello.session_id if hello.HasField("session_id") else None,
                resume_token=hello.resume_token if hello.HasField("resume_token") else None,
            )
        case "resume":
            resume = envelope.resume
            message = Resume(
                stream_id=resume.stream_id,
                last_processed_id=resume.last_processed_id,
                digest=resume.digest if resume.HasField("digest") else None,
                taken_id=resume.taken_id if resume.HasField("taken_id") else None,
            )
        case "event":
            message = _event_from_pb(envelope.event)
        case "bye":
            message = Bye()
        case _:
            raise DecodeError("the envelope holds no message of a client's")
    check_received(message)
    return message


def _event_to_pb(message: Event) -> pb.Event:
    whole = pb.Event(
        sequence_id=message.sequence_id,
        batch_id=message.batch_id,
        events=[_user_event_to_pb(event) for event in message.events],
    )
    size = sum(len(event.action) + len(event.payload) for event in message.events)
    if 4 * size > MAX_UNPACKED_BYTES:  # UTF-8 has four bytes a character at most
        return whole
    packed = pb.Event(sequence_id=message.sequence_id, batch_id=message.batch_id)
    packed.packed = pack_events(message.events)
    return min(packed, whole, key=pb.Event.ByteSize)


def _event_from_pb(event: pb.Event) -> Event:
    if event.HasField("packed"):
        if event.events:
            raise DecodeError("Event has its events twice, whole and packed")
        events = unpack_events(event.packed, MAX_EVENTS)
    else:
        events = tuple(map(_user_event_from_pb, event.events))
    return Event(sequence_id=event.sequence_id, batch_id=event.batch_id, events=events)


def _user_event_to_pb(event: UserEvent) -> pb.UserEvent:
    return pb.UserEvent(
        timestamp=event.timestamp, user_id=event.user_id, action=event.action, payload=event.payload
    )


def _user_event_from_pb(event: pb.UserEvent) -> UserEvent:
    return UserEvent(
        timestamp=event.timestamp, user_id=event.user_id, action=event.action, payload=event.payload
    )


def submit_to_pb(message: Submit) -> pb.Submit:
    """Returns a SUBMIT; a value that does not fit raises TypeError or ValueError."""
    conversation = token_ids = None
    if message.messages is not None:
        turns = [pb.ChatMessage(role=m.role, content=m.content, name=m.name) for m in message.messages]
        conversation = pb.Conversation(messages=turns)
    if message.token_ids is not None:
        token_ids = pb.TokenIds(ids=message.token_ids)
    sampling = message.sampling
    submit = pb.Submit(
        sequence_id=message.sequence_id,
        idempotency_key=message.idempotency_key,
        model=message.model,
        conversation=conversation,
        token_ids=token_ids,
        sampling=None if sampling == Sampling() else _sampling_to_pb(sampling),
        durability=None if message.durability is None else _DURABILITY_TO_PB[message.durability],
        deadline_ms=message.deadline_ms,
        parse_special=message.parse_special,
        continues=message.continues,
        on_disconnect=_ON_DISCONNECT_TO_PB[message.on_disconnect],
        allow_fingerprint_change=message.allow_fingerprint_change,
        traceparent=message.traceparent,
    )
    if message.prompt is not None:
        submit.prompt = message.prompt
    return submit


def _sampling_to_pb(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
        json_schema=sampling.json_schema,
        regex=sampling.regex,
    )


def submit_from_pb(submit: pb.Submit) -> Submit | InvalidSubmit:
    """Returns a SUBMIT.

    Raises:
        DecodeError: Its sequence id is not sound.
    """
    try:
        _check_counts(submit)
    except InvalidFieldError as error:
        return _invalid(submit, error.field, error.reason)
    which = submit.WhichOneof("input")
    messages = None
    if which == "conversation":
        messages = tuple(
            ChatMessage(
                role=turn.role,
                content=turn.content if turn.HasField("content") else None,
                name=turn.name if turn.HasField("name") else None,
            )
            for turn in submit.conversation.messages
        )
    durability = _DURABILITY_FROM_PB.get(submit.durability)
    if submit.HasField("durability") and durability is None:
        return _invalid(submit, "durability", _UNKNOWN.format(submit.durability))
    on_disconnect = _ON_DISCONNECT_FROM_PB.get(submit.on_disconnect)
    if on_disconnect is None:
        return _invalid(submit, "on_disconnect", _UNKNOWN.format(submit.on_disconnect))
    message = Submit(
        sequence_id=submit.sequence_id,
        idempotency_key=submit.idempotency_key,
        model=submit.model if submit.HasField("model") else None,
        messages=messages,
        prompt=submit.prompt if which == "prompt" else None,
        token_ids=tuple(submit.token_ids.ids) if which == "token_ids" else None,
        sampling=_sampling_from_pb(submit.sampling),
        durability=durability,
        deadline_ms=submit.deadline_ms if submit.HasField("deadline_ms") else None,
        parse_special=submit.parse_special,
        continues=submit.continues if submit.HasField("continues") else None,
        on_disconnect=on_disconnect,
        allow_fingerprint_change=submit.allow_fingerprint_change,
        traceparent=submit.traceparent if submit.HasField("traceparent") else None,
    )
    return check_submit(message)


def _check_counts(submit: pb.Submit) -> None:
    check_count("messages", len(submit.conversation.messages))
    check_count("stop", len(submit.sampling.stop))
    check_count("stop_token_ids", len(submit.sampling.stop_token_ids))
    check_count("logit_bias", len(submit.sampling.logit_bias))


def _invalid(submit: pb.Submit, field: str, reason: str) -> InvalidSubmit:
    check_sequence_id(submit.sequence_id)
    return InvalidSubmit(sequence_id=submit.sequence_id, field=field, reason=reason)


def _sampling_from_pb(sampling: pb.Sampling) -> Sampling:
    present = {descriptor.name for descriptor, _ in sampling.ListFields()}
    return Sampling(
        temperature=sampling.temperature if "temperature" in present else None,
        top_p=sampling.top_p if "top_p" in present else None,
        top_k=sampling.top_k if "top_k" in present else None,
        min_p=sampling.min_p if "min_p" in present else None,
        seed=sampling.seed if "seed" in present else None,
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        max_tokens=sampling.max_tokens if "max_tokens" in present else None,
        min_tokens=sampling.min_tokens if "min_tokens" in present else None,
        ignore_eos=sampling.ignore_eos,
        repetition_penalty=sampling.repetition_penalty if "repetition_penalty" in present else None,
        presence_penalty=sampling.presence_penalty if "presence_penalty" in present else None,
        frequency_penalty=sampling.frequency_penalty if "frequency_penalty" in present else None,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs if "top_logprobs" in present else None,
        json_schema=sampling.json_schema if "json_schema" in present else None,
        regex=sampling.regex if "regex" in present else None,
    )
