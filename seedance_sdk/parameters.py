"""How what a caller wrote becomes a SUBMIT, or is refused on the spot.

Types are checked before anything is sent; ranges are the server's to judge, since only it knows the model.
Must not know of connections.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from attrs import field, frozen

from seedance_sdk.arguments import (
    biases,
    choice,
    integer,
    integers,
    json_text,
    labels,
    number,
    request_key,
    seconds,
    text,
    texts,
    time_left,
    truth,
    wrong,
)
from seedance_sdk.errors import InvalidRequest
from seedance_sdk.options import EarlierTurn, Message
from seedance_wire.bookmark import Bookmark
from seedance_wire.errors import InvalidBookmarkError
from seedance_wire.field_rules import InvalidFieldError, check_traceparent
from seedance_wire.messages import ChatMessage, Durability, OnDisconnect, Sampling, Submit, UserEvent

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "Request",
    "ResumeRequest",
    "chat_request",
    "complete_request",
    "resume_request",
    "user_event",
]

DEFAULT_TIMEOUT_S = 120.0
"""Longest silence: a long prompt on a busy CPU server can take a minute before its first token."""

IDEMPOTENCY_KEY_BYTES = 16


@frozen(kw_only=True)
class Request:
    """A request that has been checked.

    Attributes:
        submit: What to send; ``sequence_id`` 0 and no deadline until it is sent.
        timeout_s: Longest silence, in seconds.
        deadline_s: Seconds from the call, or None.
        session_id: The session in which it continues a stream, "" for the current one; None where it
            continues none.
        extra: The caller's labels.
    """

    submit: Submit
    timeout_s: float
    deadline_s: float | None
    session_id: str | None = None
    extra: Mapping[str, object] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class ResumeRequest:
    """A stream to go on with, checked.

    Attributes:
        bookmark: From where.
        timeout_s: Longest silence, in seconds.
        deadline_s: Seconds from the call, or None.
        extra: The caller's labels.
    """

    bookmark: Bookmark
    timeout_s: float
    deadline_s: float | None
    extra: Mapping[str, object] = field(factory=dict, repr=False)


def resume_request(bookmark: object, options: Mapping[str, object]) -> ResumeRequest:
    """Checks a bookmark and its options.

    Raises:
        TypeError: It is no bookmark and no text, or an option has an unknown name or a wrong type.
        InvalidRequest: The text is not that of a bookmark.
    """
    if isinstance(bookmark, str):
        try:
            bookmark = Bookmark.from_str(bookmark)
        except InvalidBookmarkError as error:
            raise InvalidRequest(str(error), field="bookmark") from None
    if not isinstance(bookmark, Bookmark):
        raise wrong("bookmark", "a bookmark or its text", bookmark)
    checked = _checked(options, _OF_THE_CALL)
    return ResumeRequest(
        bookmark=bookmark,
        timeout_s=checked.get("timeout", DEFAULT_TIMEOUT_S),
        deadline_s=checked.get("deadline"),
        extra=checked.get("extra", {}),
    )


def chat_request(
    messages: Iterable[Message],
    options: Mapping[str, object],
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> Request:
    """Checks a conversation and its options.

    Raises:
        TypeError: An option has an unknown name or a wrong type.
        InvalidRequest: The messages are not a list of turns with text.
    """
    if isinstance(messages, str | bytes | Mapping):
        raise InvalidRequest("messages must be a list of messages", field="messages")
    turns = tuple(_turn(message, f"messages[{index}]") for index, message in enumerate(messages))
    return _request(options, random_bytes, messages=turns)


def complete_request(
    prompt: str | None,
    token_ids: Sequence[int] | None,
    options: Mapping[str, object],
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> Request:
    """Checks a text or token ids to continue, and the options.

    Raises:
        TypeError: Not exactly one of both is given, or an option has an unknown name or a wrong type.
        InvalidRequest: The text can't be sent as UTF-8.
    """
    if (prompt is None) == (token_ids is None):
        raise TypeError("give exactly one of prompt and token_ids")
    if prompt is not None:
        return _request(options, random_bytes, prompt=text("prompt", prompt))
    return _request(options, random_bytes, token_ids=integers("token_ids", token_ids))


def _request(options: Mapping[str, object], random_bytes: Callable[[int], bytes], **content: Any) -> Request:
    checked = _checked(options, _SAMPLING | _OF_THE_CALL | _OTHER)
    sampling = {name: checked.pop(name) for name in _SAMPLING if name in checked}
    timeout_s = checked.pop("timeout", DEFAULT_TIMEOUT_S)
    deadline_s = checked.pop("deadline", None)
    extra = checked.pop("extra", {})
    key = checked.pop("idempotency_key", None) or random_bytes(IDEMPOTENCY_KEY_BYTES)
    session_id, checked["continues"] = checked.pop("continues", (None, None))
    submit = Submit(
        sequence_id=0,
        idempotency_key=key,
        sampling=Sampling(**sampling),
        **checked,
        **content,
    )
    return Request(
        submit=submit, timeout_s=timeout_s, deadline_s=deadline_s, session_id=session_id, extra=extra
    )


def _checked(
    options: Mapping[str, object], known: Mapping[str, Callable[[str, object], Any]]
) -> dict[str, Any]:
    checked = {}
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"unknown parameter {name!r}; known are {', '.join(sorted(known))}")
        if value is not None:
            checked[name] = known[name](name, value)
    return checked


def _turn(message: object, where: str) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be a mapping with role and content", field=where)
    unknown = set(message) - {"role", "content", "name"}
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise InvalidRequest(f"{where} has unknown keys: {names}", field=where)
    role = message.get("role")
    name = message.get("name")
    if not isinstance(role, str):
        raise InvalidRequest(f"{where}.role must be text", field=f"{where}.role")
    if not isinstance(name, str | None):
        raise InvalidRequest(f"{where}.name must be text", field=f"{where}.name")
    return ChatMessage(
        role=text(f"{where}.role", role),
        content=_content(message.get("content"), f"{where}.content"),
        name=name if name is None else text(f"{where}.name", name),
    )


def _content(content: object, where: str) -> str | None:
    if content is None:
        return None
    if isinstance(content, str):
        return text(where, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise InvalidRequest(f"{where} must be text or a list of text parts", field=where)
    pieces = []
    for index, part in enumerate(content):
        piece = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(piece, str):
            raise InvalidRequest(
                f'{where}[{index}] must be {{"type": "text", "text": …}}', field=f"{where}[{index}]"
            )
        pieces.append(piece)
    return text(where, "".join(pieces))


def _earlier_turn(name: str, value: object) -> tuple[str, int]:
    if isinstance(value, EarlierTurn):
        return value.session_id, value.id
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise wrong(name, "a stream, a completion or a stream's number", value)
    return "", integer(name, value)


_SAMPLING: dict[str, Callable[[str, object], Any]] = {
    "temperature": number,
    "top_p": number,
    "top_k": integer,
    "min_p": number,
    "seed": integer,
    "stop": texts,
    "stop_token_ids": integers,
    "max_tokens": integer,
    "min_tokens": integer,
    "ignore_eos": truth,
    "repetition_penalty": number,
    "presence_penalty": number,
    "frequency_penalty": number,
    "logit_bias": biases,
    "logprobs": truth,
    "top_logprobs": integer,
    "json_schema": json_text,
    "regex": text,
}


def _trace(name: str, value: object) -> str:
    traceparent = text(name, value)
    try:
        check_traceparent(name, traceparent)
    except InvalidFieldError as error:
        raise InvalidRequest(error.reason, field=name) from None
    return traceparent


_OF_THE_CALL: dict[str, Callable[[str, object], Any]] = {
    "timeout": seconds,
    "deadline": time_left,
    "extra": labels,
}

_OTHER: dict[str, Callable[[str, object], Any]] = {
    "model": text,
    "parse_special": truth,
    "idempotency_key": request_key,
    "continues": _earlier_turn,
    "durability": choice(Durability),
    "on_disconnect": choice(OnDisconnect),
    "allow_fingerprint_change": truth,
    "traceparent": _trace,
}


_MAX_ACTION_BYTES, _MAX_PAYLOAD_BYTES = 256, 65_536
"""The protocol's."""


def user_event(action: str, payload: bytes | str, *, user_id: int, timestamp_ms: int) -> UserEvent:
    """Makes an event of what a caller reports.

    Raises:
        TypeError: A value has a wrong type.
        InvalidRequest: A value is out of range.
    """
    if not isinstance(action, str):
        raise TypeError(f"action must be a string, not {type(action).__name__}")
    if not isinstance(payload, bytes | str):
        raise TypeError(f"payload must be bytes or a string, not {type(payload).__name__}")
    for name, value in (("user_id", user_id), ("timestamp_ms", timestamp_ms)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    try:
        data = payload.encode() if isinstance(payload, str) else payload
        action_bytes = len(action.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("a report holds a lone surrogate", field="action") from None
    if action_bytes > _MAX_ACTION_BYTES:
        raise InvalidRequest(f"must have at most {_MAX_ACTION_BYTES} bytes", field="action")
    if len(data) > _MAX_PAYLOAD_BYTES:
        raise InvalidRequest(f"must have at most {_MAX_PAYLOAD_BYTES} bytes", field="payload")
    if not -(2**31) <= user_id < 2**31:
        raise InvalidRequest("must fit 32 bits with a sign", field="user_id")
    if not 0 <= timestamp_ms < 2**64:
        raise InvalidRequest("must fit 64 bits", field="timestamp_ms")
    return UserEvent(timestamp=timestamp_ms, user_id=user_id, action=action, payload=data)
