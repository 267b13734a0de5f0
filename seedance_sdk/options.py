"""The one signature of a request: names, types and documentation.

Both clients take ``**options: Unpack[Options]``, so a parameter is written once, here; `parameters` checks
what was given. Holds no behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, Protocol, Required, TypedDict, runtime_checkable

__all__ = ["EarlierTurn", "Message", "Options", "ResumeOptions", "SamplingOptions", "TextPart"]


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
    json_schema: str | Mapping[str, object] | None
    """A JSON schema, or its text, that the answer is to be valid under; not beside ``regex``."""
    regex: str | None
    """A regular expression that the whole answer is to match."""


@runtime_checkable
class EarlierTurn(Protocol):
    """What ``continues`` takes: a stream or a completion of the same client."""

    @property
    def id(self) -> int:
        """The stream's number in its session."""

    @property
    def session_id(self) -> str:
        """The session."""


class ResumeOptions(TypedDict, total=False):
    """What belongs to a call, whatever it asks for: what bounds the wait, and labels."""

    timeout: float
    """Longest silence from the server, in seconds, before the first piece and between two; 120 by default.
    Then the generation is cancelled and `RequestTimeout` raised. It runs only while the application waits,
    and through an outage of the connection too."""
    deadline: float | None
    """Seconds from the call after which the answer is of no use. Then the generation is cancelled and
    `DeadlineExceeded` raised. None for no bound."""
    extra: Mapping[str, object] | None
    """Labels of yours, such as a user or a purpose, to be found again as ``extra`` of the stream and of the
    completion. They are not sent."""


class Options(SamplingOptions, ResumeOptions, total=False):
    """Everything that a request takes beside its input and ``stream``."""

    model: str | None
    """Name of the model wanted; by default whatever is served."""
    continues: EarlierTurn | int | None
    """The answer that this request goes on from: a stream, a completion, or a stream's number in the current
    session. The server puts the exact tokens of that conversation before the input, which then holds only
    what is new."""
    idempotency_key: str | bytes | None
    """Names the request: however often it is sent under this key, also by another process after a crash, the
    server makes and charges one answer, and gives that one out again for a day. By default each call has a
    new one, which covers all that this client sends again by itself. A text of any length, or 16 to 64 bytes.
    The same key with other content is refused, `IdempotencyMismatch`."""
    durability: Literal["committed", "none"] | None
    """``committed``: each piece is on the server's disk before it is sent, so that the stream survives a lost
    connection and a killed server. ``none``: the stream is lost with its connection. By default what the
    server was started with."""
    on_disconnect: Literal["continue", "cancel"] | None
    """What the server does when the connection is lost: go on, and keep what comes until this client is back
    (the default), or cancel."""
    allow_fingerprint_change: bool
    """Let the answer be finished by another model, or another version of it, than began it."""
    traceparent: str | None
    """The trace that the request belongs to, as W3C Trace Context writes it: ``00-<trace>-<parent>-<flags>``.
    A server with ``--otlp-endpoint`` makes its span a child of that one. With OpenTelemetry,
    ``opentelemetry.propagate.inject(carrier)`` puts it into ``carrier["traceparent"]``."""
    parse_special: bool
    """Let control-token text in the input become control tokens. Only for input that you wrote yourself."""
