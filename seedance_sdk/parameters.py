"""The one signature of a request: names, types, documentation, and how they become a SUBMIT.

Both clients take ``**options: Unpack[Options]``, so a parameter is written once, here. Types are checked
before anything is sent; ranges are the server's to judge, since only it knows the model. Must not know of
connections.
"""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, SupportsIndex, TypedDict

from attrs import frozen

from seedance_sdk.errors import InvalidRequest
from seedance_wire.messages import ChatMessage, Sampling, Submit

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "Message",
    "Options",
    "Request",
    "SamplingOptions",
    "TextPart",
    "chat_request",
    "complete_request",
]

DEFAULT_TIMEOUT_S = 120.0
"""Longest silence: a long prompt on a busy CPU server can take a minute before its first token."""

IDEMPOTENCY_KEY_BYTES = 16


class TextPart(TypedDict):
    """One part of a message's content, as in OpenAI's API; only text has a meaning here."""

    type: Literal["text"]
    text: str


class Message(TypedDict):
    """One turn of a conversation.

    ``content`` is text, a list of text parts that are joined as they are, or None where the model's template
    allows a turn without text.
    """

    role: Required[str]
    content: Required[str | Sequence[TextPart] | None]
    name: NotRequired[str]


class SamplingOptions(TypedDict, total=False):
    """How to sample, under OpenAI's and vLLM's names. What is left out, the server chooses."""

    temperature: float | None
    """0 is greedy: always the likeliest token. Higher is more varied. The server's default is 1."""
    top_p: float | None
    """Keep the likeliest tokens whose probabilities add up to this; above 0, at most 1."""
    top_k: int | None
    """Keep this many of the likeliest tokens; 0 or -1 keeps all."""
    min_p: float | None
    """Keep tokens at least this many times as likely as the likeliest; 0 to 1."""
    seed: int | None
    """Makes the answer repeatable on the same model and server version; 64 bits, signed."""
    stop: str | Sequence[str] | None
    """Text at which to end; it is not part of the answer."""
    stop_token_ids: Sequence[int] | None
    """Token ids at which to end."""
    max_tokens: int | None
    """Most tokens to generate; by default whatever the context still holds."""
    min_tokens: int | None
    """Tokens before which neither a stop nor the end of the sequence counts."""
    ignore_eos: bool
    """Go on after the model's own end, up to ``max_tokens``. For measurements."""
    repetition_penalty: float | None
    """Above 1 makes tokens that occurred less likely, below 1 likelier."""
    presence_penalty: float | None
    """Subtracted once from each token that the answer already has."""
    frequency_penalty: float | None
    """Subtracted from each token once for every time that the answer has it."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of these token ids."""
    logprobs: bool
    """Whether each piece carries the log probabilities of its tokens."""
    top_logprobs: int | None
    """How many alternatives each log probability carries; needs ``logprobs``."""


class Options(SamplingOptions, total=False):
    """Everything that a request takes beside its input and ``stream``."""

    model: str | None
    """Name of the model wanted; by default whatever is served."""
    parse_special: bool
    """Let control-token text in the input become control tokens. Only for input that you wrote yourself."""
    timeout: float
    """Longest silence from the server, in seconds, before the first piece and between two; 120 by default.
    Then the generation is cancelled and `RequestTimeout` raised. It runs only while the application waits."""
    deadline: float | None
    """Seconds from the call after which the answer is of no use. Then the generation is cancelled and
    `DeadlineExceeded` raised. None for no bound."""


@frozen(kw_only=True)
class Request:
    """A request that has been checked.

    Attributes:
        submit: What to send; ``sequence_id`` 0 and no deadline until it is sent.
        timeout_s: Longest silence, in seconds.
        deadline_s: Seconds from the call, or None.
    """

    submit: Submit
    timeout_s: float
    deadline_s: float | None


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
        return _request(options, random_bytes, prompt=_text("prompt", prompt))
    return _request(options, random_bytes, token_ids=_integers("token_ids", token_ids))


def _request(options: Mapping[str, object], random_bytes: Callable[[int], bytes], **content: Any) -> Request:
    sampling: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for name, value in options.items():
        if name in _SAMPLING:
            if value is not None:
                sampling[name] = _SAMPLING[name](name, value)
        elif name in _OTHER:
            if value is not None:
                other[name] = _OTHER[name](name, value)
        else:
            raise TypeError(f"unknown parameter {name!r}; known are {', '.join(sorted(_SAMPLING | _OTHER))}")
    timeout_s = other.pop("timeout", DEFAULT_TIMEOUT_S)
    deadline_s = other.pop("deadline", None)
    submit = Submit(
        sequence_id=0,
        idempotency_key=random_bytes(IDEMPOTENCY_KEY_BYTES),
        sampling=Sampling(**sampling),
        **other,
        **content,
    )
    return Request(submit=submit, timeout_s=timeout_s, deadline_s=deadline_s)


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
        role=_text(f"{where}.role", role),
        content=_content(message.get("content"), f"{where}.content"),
        name=name if name is None else _text(f"{where}.name", name),
    )


def _content(content: object, where: str) -> str | None:
    if content is None:
        return None
    if isinstance(content, str):
        return _text(where, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise InvalidRequest(f"{where} must be text or a list of text parts", field=where)
    pieces = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f'{where}[{index}] must be {{"type": "text", "text": …}}', field=f"{where}[{index}]"
            )
        pieces.append(text)
    return _text(where, "".join(pieces))


def _wrong(name: str, wanted: str, value: object) -> TypeError:
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{name} holds a lone surrogate at character {error.start}, which no UTF-8 text can"
        raise InvalidRequest(message, field=name) from None
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise InvalidRequest(f"{name} is too large", field=name) from None


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):  # NumPy's integers are welcome
        raise _wrong(name, "an integer", value)
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise InvalidRequest(f"{name} does not fit 64 bits", field=name)
    return number


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "True or False", value)
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(name, value),)
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray):
        raise _wrong(name, "text or a list of texts", value)
    return tuple(_text(name, item) for item in value)


def _integers(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray):
        raise _wrong(name, "a list of integers", value)
    return tuple(_integer(name, item) for item in value)


def _biases(name: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong(name, "a mapping from token id to bias", value)
    return {_integer(name, token_id): _number(name, bias) for token_id, bias in value.items()}


def _seconds(name: str, value: object) -> float:
    seconds = _number(name, value)
    if not seconds > 0 or math.isnan(seconds):
        raise InvalidRequest(f"{name} must be more than 0 seconds", field=name)
    return seconds


_SAMPLING: dict[str, Callable[[str, object], Any]] = {
    "temperature": _number,
    "top_p": _number,
    "top_k": _integer,
    "min_p": _number,
    "seed": _integer,
    "stop": _texts,
    "stop_token_ids": _integers,
    "max_tokens": _integer,
    "min_tokens": _integer,
    "ignore_eos": _truth,
    "repetition_penalty": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "logit_bias": _biases,
    "logprobs": _truth,
    "top_logprobs": _integer,
}

_OTHER: dict[str, Callable[[str, object], Any]] = {
    "model": _text,
    "parse_special": _truth,
    "timeout": _seconds,
    "deadline": _seconds,
}
