"""What an OpenAI client asks for, as requests of our own: one for each choice.

Every field of OpenAI's has one of four fates: it is carried out, it says nothing about the answer and is let
pass, it is let pass at its neutral value and refused else, or it isn't known and refused. So no client gets
an answer to something that it didn't ask. Fields of vLLM's and our own stand beside them. Whether a value is
in range is for the engine to say, so that both doors say the same.

It must not know connections or how requests are carried out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from seedance_server.http.answer_id import AnswerId, Kind
from seedance_server.http.fields import Fields
from seedance_wire.messages import ChatMessage, OnDisconnect, Sampling, Submit

__all__ = ["Asked", "parse_asked"]

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
_LET_PASS = (
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user",
)  # fmt: skip
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Refused unless they are absent, null or one of these."""
_ANY_OBJECT = '{"type":"object"}'
_MESSAGE_NEUTRAL = ("audio", "function_call", "refusal", "tool_calls")
_TEXT_DEFAULT_TOKENS = 16
"""OpenAI's own, of the older endpoint."""


@frozen(kw_only=True)
class Asked:
    """A request of a client's.

    Attributes:
        answer: What its answer is called.
        submits: One for each choice, in order.
        prompts: How many prompts there are, each with as many choices.
        stream: Whether the answer is wanted as events.
        include_usage: Whether the events are to end with the tokens used.
    """

    answer: AnswerId
    submits: tuple[Submit, ...]
    prompts: int
    stream: bool
    include_usage: bool


def parse_asked(answer: AnswerId, body: Any, *, max_choices: int) -> Asked:
    """Reads the body of a request.

    Args:
        answer: What its answer is called, and with it its shape.
        body: As JSON gave it.
        max_choices: How many choices there may be.

    Raises:
        Refusal: Something in it can't be done.
    """
    fields = Fields(body)
    for name in _LET_PASS:
        fields.take(name)
    for name, values in _NEUTRAL.items():
        if (given := fields.take(name)) is not None and given not in values:
            raise fields.unsupported(name)
    common = _common(fields, answer.kind)
    inputs = _conversation(fields) if answer.kind is Kind.CHAT else _prompts(fields)
    n = fields.integer("n", default=1, least=1)
    stream = fields.flag("stream")
    include_usage = _include_usage(fields)
    fields.refuse_others()
    if len(inputs) * n > max_choices:
        raise fields.wrong("n", f"at most {max_choices} choices are made at once")
    sampling = common.pop("sampling")
    submits = [
        Submit(
            sequence_id=number + 1,
            idempotency_key=answer.key_of(number),
            sampling=_seeded(sampling, number % n),
            **common,
            **inputs[number // n],
        )
        for number in range(len(inputs) * n)
    ]
    return Asked(
        answer=answer, submits=tuple(submits), prompts=len(inputs), stream=stream, include_usage=include_usage
    )


def _include_usage(fields: Fields) -> bool:
    options = Fields(fields.take("stream_options") or {}, "stream_options")
    options.take("include_obfuscation")  # padding, against whoever listens to lengths
    include_usage = options.flag("include_usage")
    options.refuse_others()
    return include_usage


def _common(fields: Fields, kind: Kind) -> dict[str, Any]:
    """What both shapes have in common."""
    on_disconnect = fields.choice("on_disconnect", [each.value for each in OnDisconnect]) or "continue"
    return {
        "model": fields.text("model") or None,
        "sampling": Sampling(
            **{name: fields.take(name) for name in _SAMPLING},
            stop=_stops(fields),
            stop_token_ids=tuple(fields.items("stop_token_ids")),
            ignore_eos=fields.flag("ignore_eos"),
            logit_bias=_logit_bias(fields),
            max_tokens=_max_tokens(fields, kind),
            **_form(fields),
            **_logprobs(fields, kind),
        ),
        "deadline_ms": fields.integer("deadline_ms", least=1),
        "on_disconnect": OnDisconnect(on_disconnect),
    }


def _seeded(sampling: Sampling, choice: int) -> Sampling:
    """Several choices under one seed are several answers, and the same ones each time."""
    if not choice or not isinstance(sampling.seed, int):
        return sampling
    return evolve(sampling, seed=sampling.seed + choice)


def _stops(fields: Fields) -> tuple[str, ...]:
    stop = fields.take("stop")
    return (stop,) if isinstance(stop, str) else tuple(fields.as_items("stop", stop))


def _logit_bias(fields: Fields) -> dict[int, Any]:
    bias = fields.take("logit_bias") or {}
    try:
        return {int(token_id): value for token_id, value in bias.items()}
    except (AttributeError, ValueError):
        raise fields.wrong("logit_bias", "must map token ids to numbers") from None


def _max_tokens(fields: Fields, kind: Kind) -> Any:
    older = fields.take("max_tokens")
    if kind is Kind.TEXT:
        return _TEXT_DEFAULT_TOKENS if older is None else older
    newer = fields.take("max_completion_tokens")
    if None not in (older, newer) and older != newer:
        raise fields.wrong("max_tokens", "contradicts max_completion_tokens: give one of them")
    return older if newer is None else newer


def _form(fields: Fields) -> dict[str, Any]:
    """What the answer must be: OpenAI's ``response_format``, or vLLM's names for the same and more."""
    schema = _response_schema(fields)
    guided = fields.take("guided_json")
    if guided is not None:
        if schema is not None:
            raise fields.wrong("guided_json", "can't stand beside response_format")
        schema = guided if isinstance(guided, str) else json.dumps(guided)
    return {"json_schema": schema, "regex": fields.text("guided_regex")}


def _response_schema(fields: Fields) -> str | None:
    given = fields.take("response_format")
    if given is None:
        return None
    form = Fields(given, "response_format")
    kind = form.choice("type", ["text", "json_object", "json_schema"])
    if kind != "json_schema":
        form.refuse_others()
        return _ANY_OBJECT if kind == "json_object" else None
    named = Fields(form.take("json_schema"), "response_format.json_schema")
    for each in ("name", "description", "strict"):
        named.take(each)  # it is always kept to, whatever it is called
    schema = named.take("schema")
    named.refuse_others()
    form.refuse_others()
    if not isinstance(schema, dict):
        raise named.wrong("schema", "must be a JSON schema")
    return json.dumps(schema)


def _logprobs(fields: Fields, kind: Kind) -> dict[str, Any]:
    if kind is Kind.CHAT:
        return {"logprobs": fields.flag("logprobs"), "top_logprobs": fields.take("top_logprobs")}
    top = fields.integer("logprobs", least=0)
    return {} if top is None else {"logprobs": True, "top_logprobs": top}


def _conversation(fields: Fields) -> list[dict[str, Any]]:
    messages = fields.items("messages")
    if not messages:
        raise fields.wrong("messages", "must hold at least one message")
    turns = tuple(_turn(f"messages[{index}]", message) for index, message in enumerate(messages))
    return [{"messages": turns}]


def _turn(name: str, message: Any) -> ChatMessage:
    fields = Fields(message, name)
    for each in _MESSAGE_NEUTRAL:
        if fields.take(each) not in (None, []):
            raise fields.unsupported(each)
    role = fields.text("role")
    if not role:
        raise fields.wrong("role", "is needed")
    content = fields.take("content")
    speaker = fields.text("name")
    fields.refuse_others()
    if content is not None and not isinstance(content, str):
        content = "".join(_parts(fields, content))
    return ChatMessage(
        role="system" if role == "developer" else role,
        content=content and fields.as_text("content", content),
        name=speaker,
    )


def _parts(fields: Fields, content: Any) -> Iterable[str]:
    for part in fields.as_items("content", content):
        if not isinstance(part, Mapping) or part.get("type") not in ("text", "refusal"):
            raise fields.unsupported("content", "parts of a message's content must be text")
        yield fields.as_text("content", part.get(part["type"]))


def _prompts(fields: Fields) -> list[dict[str, Any]]:
    prompt = fields.take("prompt")
    if isinstance(prompt, str):
        return [{"prompt": fields.as_text("prompt", prompt)}]
    items = fields.as_items("prompt", prompt)
    if items and all(_is_id(item) for item in items):
        return [{"token_ids": tuple(items)}]
    if items and all(isinstance(item, str) for item in items):
        return [{"prompt": fields.as_text("prompt", item)} for item in items]
    if items and all(isinstance(item, list) and item and all(map(_is_id, item)) for item in items):
        return [{"token_ids": tuple(item)} for item in items]
    raise fields.wrong("prompt", "must be text, a list of texts, token ids, or a list of those")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
