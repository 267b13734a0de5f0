"""A client's messages as JSON objects, for the JSON and the raw encoding.

The sampling parameters stand beside the input, under the names that people know from OpenAI's API, and a
refusal names a field exactly so. A SUBMIT is written by hand more often than any other message, so in it, and
only in it, an unknown field is refused: a misspelt parameter must not be ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .envelope import MAX_EVENTS, FromClient, InvalidSubmit
from .errors import DecodeError
from .json_fields import Fields, Json, as_integer, integer, number, present
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
from .validity import InvalidFieldError, check_count, check_received, check_sequence_id, check_submit

__all__ = ["client_message_from_json", "client_message_to_json"]

_DURABILITIES = {durability.value: durability for durability in Durability}
_ON_DISCONNECT = {what.value: what for what in OnDisconnect}
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_INTEGERS = ("top_k", "seed", "max_tokens", "min_tokens", "top_logprobs")


def client_message_to_json(message: ClientMessage) -> dict[str, Json]:
    """Returns the JSON object of a client's message."""
    return _WRITERS[type(message)](message)


def client_message_from_json(value: Json) -> FromClient:
    """Returns the message of a JSON object.

    Raises:
        DecodeError: It is none, or a SUBMIT without a sound sequence id.
    """
    try:
        fields = Fields(value)
        kind = fields.choice("type", _READERS)
        message = kind(fields)
    except InvalidFieldError as error:
        raise DecodeError(str(error)) from None
    if not isinstance(message, Submit | InvalidSubmit):
        check_received(message)
    return message


# ---- SUBMIT


def _submit_to_json(message: Submit) -> dict[str, Json]:
    written: dict[str, Json] = {
        "type": "submit",
        "sequence_id": integer(message.sequence_id),
        "idempotency_key": message.idempotency_key.hex(),
    }
    if message.messages is not None:
        written["messages"] = [_turn_to_json(turn) for turn in message.messages]
    if message.token_ids is not None:
        written["token_ids"] = [integer(token_id) for token_id in message.token_ids]
    optional: dict[str, Json] = {
        "model": message.model,
        "prompt": message.prompt,
        "durability": None if message.durability is None else message.durability.value,
        "deadline_ms": integer(message.deadline_ms),
        "parse_special": message.parse_special or None,
        "continues": integer(message.continues),
        "on_disconnect": message.on_disconnect.value
        if message.on_disconnect is OnDisconnect.CANCEL
        else None,
        "allow_fingerprint_change": message.allow_fingerprint_change or None,
        "traceparent": message.traceparent,
    }
    sampling = message.sampling
    optional |= {name: getattr(sampling, name) for name in _NUMBERS}
    optional |= {name: integer(getattr(sampling, name)) for name in _INTEGERS}
    optional |= {
        "stop": list(sampling.stop) or None,
        "stop_token_ids": [integer(token_id) for token_id in sampling.stop_token_ids] or None,
        "ignore_eos": sampling.ignore_eos or None,
        "logit_bias": {str(token_id): bias for token_id, bias in sampling.logit_bias.items()} or None,
        "logprobs": sampling.logprobs or None,
        "json_schema": sampling.json_schema,
        "regex": sampling.regex,
    }
    return written | {name: value for name, value in optional.items() if value is not None}


def _turn_to_json(turn: ChatMessage) -> dict[str, Json]:
    written: dict[str, Json] = {"role": turn.role, "content": turn.content}
    if turn.name is not None:
        written["name"] = turn.name
    return written


def _submit(fields: Fields) -> Submit | InvalidSubmit:
    sequence_id = fields.integer("sequence_id")  # a failure here is the envelope's
    try:
        message = Submit(
            sequence_id=sequence_id,
            idempotency_key=fields.hexadecimal("idempotency_key"),
            model=fields.optional_text("model"),
            messages=_turns(fields),
            prompt=fields.optional_text("prompt"),
            token_ids=None if fields.optional("token_ids") is None else _token_ids(fields),
            sampling=_sampling(fields),
            durability=_durability(fields),
            deadline_ms=fields.optional_integer("deadline_ms"),
            parse_special=fields.flag("parse_special"),
            continues=fields.optional_integer("continues"),
            on_disconnect=_on_disconnect(fields),
            allow_fingerprint_change=fields.flag("allow_fingerprint_change"),
            traceparent=fields.optional_text("traceparent"),
        )
        fields.close()
    except InvalidFieldError as error:
        check_sequence_id(sequence_id)
        return InvalidSubmit(sequence_id=sequence_id, field=error.field, reason=error.reason)
    return check_submit(message)


def _token_ids(fields: Fields) -> tuple[int, ...]:
    return fields.integers("token_ids", limit=None)  # as many as a message holds


def _turns(fields: Fields) -> tuple[ChatMessage, ...] | None:
    if fields.optional("messages") is None:
        return None
    turns = []
    for turn in fields.objects("messages"):
        content = _content(turn)
        turns.append(ChatMessage(role=turn.text("role"), content=content, name=turn.optional_text("name")))
        turn.close()
    return tuple(turns)


def _content(turn: Fields) -> str | None:
    """Reads a turn's text: a string, nothing, or a list of parts that are all text, which are joined."""
    if not isinstance(turn.optional("content"), list):
        return turn.optional_text("content")
    texts = []
    for part in turn.objects("content"):
        if part.optional("type") != "text":
            raise InvalidFieldError(turn.path("content"), "only parts of type text are understood")
        texts.append(part.text("text"))
    return "".join(texts)


def _sampling(fields: Fields) -> Sampling:
    numbers = {name: fields.optional_number(name) for name in _NUMBERS}
    integers = {name: fields.optional_integer(name) for name in _INTEGERS}
    stop = fields.optional("stop")
    return Sampling(
        **numbers,  # type: ignore[arg-type]
        **integers,
        stop=(stop,) if isinstance(stop, str) else fields.texts("stop"),
        stop_token_ids=fields.integers("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        logit_bias=_logit_bias(fields),
        logprobs=fields.flag("logprobs"),
        json_schema=fields.optional_text("json_schema"),
        regex=fields.optional_text("regex"),
    )


def _durability(fields: Fields) -> Durability | None:
    return None if fields.optional("durability") is None else fields.choice("durability", _DURABILITIES)


def _on_disconnect(fields: Fields) -> OnDisconnect:
    if fields.optional("on_disconnect") is None:
        return OnDisconnect.CONTINUE
    return fields.choice("on_disconnect", _ON_DISCONNECT)


def _logit_bias(fields: Fields) -> dict[int, float]:
    written = fields.optional("logit_bias")
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise InvalidFieldError("logit_bias", "must be an object of token ids")
    check_count("logit_bias", len(written))
    return {
        as_integer("logit_bias", token_id): number(f"logit_bias[{token_id[:20]}]", bias)
        for token_id, bias in written.items()
    }


# ---- the others


def _hello_to_json(message: Hello) -> dict[str, Json]:
    written: dict[str, Json] = {
        "type": "hello",
        "minor_version": message.minor_version,
        "sdk_name": message.sdk_name,
        "sdk_version": message.sdk_version,
        "capabilities": list(message.capabilities),
    }
    if message.session_id is not None:
        written["session_id"] = message.session_id
    if message.resume_token is not None:
        written["resume_token"] = message.resume_token.hex()
    return written


def _hello(fields: Fields) -> Hello:
    return Hello(
        minor_version=fields.optional_integer("minor_version") or 0,
        sdk_name=fields.optional_text("sdk_name") or "",
        sdk_version=fields.optional_text("sdk_version") or "",
        capabilities=fields.texts("capabilities"),
        session_id=fields.optional_text("session_id"),
        resume_token=fields.optional_hexadecimal("resume_token"),
    )


def _cancel_to_json(message: Cancel) -> dict[str, Json]:
    return {
        "type": "cancel",
        "sequence_id": integer(message.sequence_id),
        "stream_id": integer(message.stream_id),
    }


def _cancel(fields: Fields) -> Cancel:
    return Cancel(sequence_id=fields.integer("sequence_id"), stream_id=fields.integer("stream_id"))


def _resume_to_json(message: Resume) -> dict[str, Json]:
    return present(
        type="resume",
        stream_id=integer(message.stream_id),
        last_processed_id=integer(message.last_processed_id),
        digest=None if message.digest is None else message.digest.hex(),
        taken_id=integer(message.taken_id),
    )


def _resume(fields: Fields) -> Resume:
    return Resume(
        stream_id=fields.integer("stream_id"),
        last_processed_id=fields.integer("last_processed_id"),
        digest=fields.optional_hexadecimal("digest"),
        taken_id=fields.optional_integer("taken_id"),
    )


def _ack_to_json(message: Ack) -> dict[str, Json]:
    entries = [{"s": integer(s), "id": integer(f)} for s, f in message.processed]
    return {"type": "ack", "processed": entries}


def _ack(fields: Fields) -> Ack:
    entries = fields.objects("processed")
    return Ack(processed=tuple((entry.integer("s"), entry.integer("id")) for entry in entries))


def _user_event_to_json(event: UserEvent) -> dict[str, Json]:
    return {
        "timestamp": integer(event.timestamp),
        "user_id": event.user_id,
        "action": event.action,
        "payload": event.payload.hex(),
    }


def _event_to_json(message: Event) -> dict[str, Json]:
    return {
        "type": "event",
        "sequence_id": integer(message.sequence_id),
        "batch_id": integer(message.batch_id),
        "events": [_user_event_to_json(event) for event in message.events],
    }


def _event(fields: Fields) -> Event:
    return Event(
        sequence_id=fields.integer("sequence_id"),
        batch_id=fields.integer("batch_id"),
        events=tuple(
            UserEvent(
                timestamp=entry.integer("timestamp"),
                user_id=entry.integer("user_id"),
                action=entry.text("action"),
                payload=entry.optional_hexadecimal("payload") or b"",
            )
            for entry in fields.objects("events", limit=MAX_EVENTS)
        ),
    )


def _bye_to_json(message: Bye) -> dict[str, Json]:
    del message  # nothing in it
    return {"type": "bye"}


def _bye(fields: Fields) -> Bye:
    del fields  # nothing in it
    return Bye()


_WRITERS: Mapping[type, Callable[..., dict[str, Json]]] = {
    Ack: _ack_to_json,
    Bye: _bye_to_json,
    Cancel: _cancel_to_json,
    Event: _event_to_json,
    Hello: _hello_to_json,
    Resume: _resume_to_json,
    Submit: _submit_to_json,
}
_READERS: Mapping[str, Callable[[Fields], FromClient]] = {
    "hello": _hello,
    "submit": _submit,
    "cancel": _cancel,
    "resume": _resume,
    "ack": _ack,
    "event": _event,
    "bye": _bye,
}
