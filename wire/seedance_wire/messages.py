"""Every message of the seedance.v1 protocol as a frozen value (S8, S9, S11, S19).

These classes are what both ends speak of; `codec.py` turns them into bytes and back. They hold no behaviour
beyond their own shape, so a message that exists is one that some codec can carry. What a message *means* at a
given moment is the business of `state.py`.

Integers named ``*_ms`` are milliseconds, ``offset`` counts UTF-8 bytes, frame ids count from 1 in each
stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TypeAlias

from attrs import field, frozen

__all__ = [
    "Accepted",
    "Ack",
    "Bye",
    "Cancel",
    "ChatMessage",
    "ClientMessage",
    "Delta",
    "Durability",
    "Error",
    "ErrorCode",
    "Final",
    "FinishReason",
    "Flush",
    "Frame",
    "FrameType",
    "GoAway",
    "Hello",
    "Limits",
    "Message",
    "Refused",
    "Sampling",
    "ServerMessage",
    "StageTiming",
    "Submit",
    "TokenLogprob",
    "Usage",
    "Welcome",
]


class FrameType(IntEnum):
    """The frame types of S9, as they stand on the wire."""

    DELTA = 0x01
    FLUSH = 0x02
    ERROR = 0x03


class Durability(Enum):
    """What a server has done with a piece before it sends it (S21)."""

    NONE = "none"
    """Nothing: the stream lives and dies with its connection."""


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the model's context was used up."""
    CANCELLED = "cancelled"
    """The client asked for it."""


class ErrorCode(Enum):
    """Who is at fault and what to do, for REFUSED and for ERROR frames.

    The first group is the caller's request, the second the server's condition, the last a fault of the
    server.
    """

    INVALID_REQUEST = "invalid_request"
    """A field is missing, out of range or contradicts another; ``field`` names it."""
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    """The prompt does not fit the model's context."""
    CAPACITY_EXCEEDED = "capacity_exceeded"
    """The prompt fits the model, but never this server's KV pool."""
    MODEL_NOT_FOUND = "model_not_found"
    """The server serves another model."""
    TEMPLATE_ERROR = "template_error"
    """The model's chat template refused these messages."""
    UNSUPPORTED = "unsupported"
    """Well-formed, but this server does not offer it."""

    OVERLOADED = "overloaded"
    """A limit on streams or waiting requests is reached; try again."""
    RATE_LIMITED = "rate_limited"
    """This client sends faster than it may; try again after the time given."""
    DRAINING = "draining"
    """The server is shutting down; go elsewhere."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The request's own deadline passed."""

    NUMERICAL_ERROR = "numerical_error"
    """The model produced no usable probabilities for this sequence."""
    ENGINE_FAILED = "engine_failed"
    """The engine stopped; the request may be sent again."""
    INTERNAL = "internal"
    """A bug in the server."""


@frozen(kw_only=True)
class ChatMessage:
    """One turn of a conversation.

    ``content`` may be absent, as some templates allow for assistant turns; the server refuses it where the
    template needs text.
    """

    role: str
    content: str | None
    name: str | None = None


def _frozen_mapping(pairs: Mapping[int, float]) -> Mapping[int, float]:
    return MappingProxyType(dict(pairs))


@frozen(kw_only=True)
class Sampling:
    """Sampling parameters under OpenAI's and vLLM's names; None leaves the choice to the server."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(factory=dict, converter=_frozen_mapping, hash=False)
    logprobs: bool = False
    top_logprobs: int | None = None


# ---- client to server


@frozen(kw_only=True)
class Hello:
    """The first message, once: who is speaking and what it can do."""

    minor_version: int = 0
    sdk_name: str = ""
    sdk_version: str = ""
    capabilities: tuple[str, ...] = ()


@frozen(kw_only=True)
class Submit:
    """Asks for one generation; exactly one of ``messages``, ``prompt`` and ``token_ids`` is given.

    Attributes:
        sequence_id: Position among this client's messages, +1 each from 1.
        idempotency_key: 16 to 64 bytes, made before the first attempt.
        model: Name of the model wanted, or None for whatever is served.
        messages: A conversation for the model's chat template.
        prompt: Text to continue as it is.
        token_ids: Token ids to continue as they are.
        sampling: How to sample.
        durability: What must have happened to a piece before it is sent; None for the server's default.
        deadline_ms: Time from receipt after which the answer is of no use.
        parse_special: Let control-token text in the input become control tokens. Only for trusted input.
    """

    sequence_id: int
    idempotency_key: bytes
    model: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    durability: Durability | None = None
    deadline_ms: int | None = None
    parse_special: bool = False


@frozen(kw_only=True)
class Cancel:
    """Ends a stream early; idempotent. The answer is the normal end with reason ``cancelled``."""

    sequence_id: int
    stream_id: int


@frozen(kw_only=True)
class Ack:
    """What the application has taken, cumulative: pairs of (stream id, highest frame id processed)."""

    processed: tuple[tuple[int, int], ...]


@frozen(kw_only=True)
class Bye:
    """The client is done; a normal close follows."""


# ---- server to client


@frozen(kw_only=True)
class Limits:
    """What this server allows on this connection."""

    max_message_bytes: int
    max_streams: int
    max_context_tokens: int


@frozen(kw_only=True)
class Welcome:
    """The answer to HELLO.

    ``last_sequence_id`` is the highest client message that the server holds for this session.
    """

    session_id: str
    epoch: int
    last_sequence_id: int
    model: str
    limits: Limits
    minor_version: int = 0
    server_version: str = ""
    capabilities: tuple[str, ...] = ()


@frozen(kw_only=True)
class Accepted:
    """The server will answer the SUBMIT of this ``sequence_id`` on this stream.

    Stream ids rise in the order in which ACCEPTED messages are sent, so a server gives them out when it sends
    one.
    """

    sequence_id: int
    stream_id: int
    durability: Durability


@frozen(kw_only=True)
class Refused:
    """The server will not act on the message of this ``sequence_id``; the connection stays."""

    sequence_id: int
    code: ErrorCode
    message: str
    field: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None


@frozen(kw_only=True)
class GoAway:
    """The server will close; streams go on until it does, new requests are refused."""

    reason: str
    reconnect_to: str | None = None
    deadline_ms: int | None = None


@frozen(kw_only=True)
class TokenLogprob:
    """One sampled token with its natural log probability and the best alternatives (id, text, logprob)."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@frozen(kw_only=True)
class Usage:
    """Tokens charged; ``cached_tokens`` of the prompt were not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@frozen(kw_only=True)
class StageTiming:
    """Where the time to the first token went, in milliseconds (S18)."""

    queue_ms: float = 0.0
    preprocess_ms: float = 0.0
    prefill_ms: float = 0.0
    first_decode_ms: float = 0.0
    cache_sync_ms: float = 0.0
    egress_ms: float = 0.0


@frozen(kw_only=True)
class Delta:
    """New text of a stream; whole code points only."""

    stream_id: int
    id: int
    epoch: int
    offset: int
    text: str
    token_count: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


@frozen(kw_only=True)
class Final:
    """How a stream ended; ``digest`` is the SHA-256 of its whole text in UTF-8.

    ``stop`` is the stop string or the token id that ended it, if one of the caller's own did.
    """

    finish_reason: FinishReason
    usage: Usage
    timing: StageTiming
    digest: bytes
    stop: str | int | None = None


@frozen(kw_only=True)
class Flush:
    """Commits the segment and clears the delta context; with ``final`` it also ends the stream."""

    stream_id: int
    id: int
    epoch: int
    offset: int
    final: Final | None = None


@frozen(kw_only=True)
class Error:
    """Ends a stream with a failure of its own; other streams are untouched."""

    stream_id: int
    id: int
    epoch: int
    offset: int
    code: ErrorCode
    message: str
    retryable: bool = False
    retry_after_ms: int | None = None


Frame: TypeAlias = Delta | Flush | Error
ClientMessage: TypeAlias = Hello | Submit | Cancel | Ack | Bye
ServerMessage: TypeAlias = Welcome | Accepted | Refused | GoAway | Frame
Message: TypeAlias = ClientMessage | ServerMessage
