"""Every message of the seedance.v1 protocol as a frozen value (S8, S9, S11, S12, S19).

These classes are what both ends speak of; `codec.py` turns them into bytes and back. They hold no behaviour
beyond their own shape. What a message *means* at a given moment is the business of `state.py`. Integers named
``*_ms`` are milliseconds, ``offset`` counts UTF-8 bytes, frame ids count from 1 in each stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from attrs import field, frozen

from .codes import (
    AckLevel,
    Durability,
    ErrorCode,
    FinishReason,
    FlowAction,
    FrameType,
    OnDisconnect,
    Phase,
    ResumeFailure,
)
from .frames import Delta, Error, Final, Flush, Frame, StageTiming, TokenLogprob, Usage
from .user_event import UserEvent

__all__ = [
    "Accepted",
    "Ack",
    "AckLevel",
    "Bye",
    "Cancel",
    "ChatMessage",
    "Checkpoint",
    "ClientMessage",
    "Delta",
    "Durability",
    "Error",
    "ErrorCode",
    "Event",
    "Final",
    "FinishReason",
    "Flow",
    "FlowAction",
    "Flush",
    "Frame",
    "FrameType",
    "GoAway",
    "Hello",
    "Limits",
    "Message",
    "OnDisconnect",
    "Phase",
    "Refused",
    "Resume",
    "ResumeFailure",
    "ResumeRejected",
    "Resumed",
    "Sampling",
    "ServerMessage",
    "StageTiming",
    "Status",
    "StreamCheckpoint",
    "Submit",
    "TokenLogprob",
    "Usage",
    "UserEvent",
    "Welcome",
]


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
    json_schema: str | None = None
    regex: str | None = None


# ---- client to server


@frozen(kw_only=True)
class Hello:
    """The first message, once: who is speaking, what it can do, and which session it comes back to.

    ``session_id`` and ``resume_token`` are those of an earlier WELCOME; both or none are given.
    """

    minor_version: int = 0
    sdk_name: str = ""
    sdk_version: str = ""
    capabilities: tuple[str, ...] = ()
    session_id: str | None = None
    resume_token: bytes | None = field(default=None, repr=False)


@frozen(kw_only=True)
class Submit:
    """Asks for one generation; exactly one of ``messages``, ``prompt`` and ``token_ids`` is given.

    Attributes:
        sequence_id: Position among this client's messages, +1 each from 1. A message that is sent again keeps
            its own.
        idempotency_key: 16 to 64 bytes, made before the first attempt and the same in each: however often it
            is sent, it starts one generation.
        model: Name of the model wanted, or None for whatever is served.
        messages: A conversation for the model's chat template.
        prompt: Text to continue as it is.
        token_ids: Token ids to continue as they are.
        sampling: How to sample.
        durability: What must have happened to a piece before it is sent; None for the server's default.
        deadline_ms: Time from receipt after which the answer is of no use.
        parse_special: Let control-token text in the input become control tokens. Only for trusted input.
        continues: The stream of this session whose exact token ids, prompt and answer, come before this
            request; the input then holds only what is new.
        on_disconnect: What becomes of the stream when the connection is cut.
        allow_fingerprint_change: Another model than the one that began may finish the answer.
        traceparent: The trace that the request belongs to, as W3C Trace Context writes it; None for none.
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
    continues: int | None = None
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    allow_fingerprint_change: bool = False
    traceparent: str | None = None


@frozen(kw_only=True)
class Cancel:
    """Ends a stream early; idempotent. The answer is the normal end with reason ``cancelled``."""

    sequence_id: int
    stream_id: int


@frozen(kw_only=True)
class Resume:
    """Asks for the frames of a stream after ``last_processed_id``, of a finished one too.

    Nothing of the stream counts from here until RESUMED.

    Attributes:
        stream_id: The stream.
        last_processed_id: The last frame that the client has; 0 for none.
        digest: The first 16 bytes of the SHA-256 of the text in UTF-8 up to there, where the client knows it.
        taken_id: The last frame that the application has taken, at most ``last_processed_id``; None if that
            is the same. What lies between waits in the client, and fills the window until it is acknowledged.
    """

    stream_id: int
    last_processed_id: int
    digest: bytes | None = None
    taken_id: int | None = None


@frozen(kw_only=True)
class Ack:
    """What the application has taken, cumulative: pairs of (stream id, highest frame id processed)."""

    processed: tuple[tuple[int, int], ...]


@frozen(kw_only=True)
class Event:
    """Reports what happened at the client; answered by the CHECKPOINT that covers it, or REFUSED.

    ``sequence_id`` is from the counter of SUBMIT and CANCEL, and another one whenever the events are sent
    again; ``batch_id`` then is the same, never that of other events of the session, and makes that they count
    once.
    """

    sequence_id: int
    batch_id: int
    events: tuple[UserEvent, ...]


@frozen(kw_only=True)
class Bye:
    """The client is done; a normal close follows."""


# ---- server to client


@frozen(kw_only=True)
class Limits:
    """What this server allows on this connection; of the last two, 0 says nothing."""

    max_message_bytes: int
    max_streams: int
    max_context_tokens: int
    messages_per_second: float = 0.0
    message_burst: int = 0


@frozen(kw_only=True)
class Welcome:
    """The answer to HELLO.

    Attributes:
        session_id: The session, the one of HELLO if it is still there.
        epoch: Which owner of the session speaks, from 1; never lower than before.
        last_sequence_id: All messages of the client's up to this are kept; new ones go on at plus one.
        model: The model served.
        limits: What this server allows.
        resume_token: What a later HELLO must show to come back; empty if that is not possible. A secret.
        session_present: Whether this is the session that HELLO named, with its streams.
        retention_ms: How long a finished stream can still be resumed.
        resume_window_ms: How long an unfinished one waits for its client.
    """

    session_id: str
    epoch: int
    last_sequence_id: int
    model: str
    limits: Limits
    minor_version: int = 0
    server_version: str = ""
    capabilities: tuple[str, ...] = ()
    resume_token: bytes = field(default=b"", repr=False)
    session_present: bool = False
    retention_ms: int = 0
    resume_window_ms: int = 0


@frozen(kw_only=True)
class Accepted:
    """The server will answer the SUBMIT of this ``sequence_id`` on this stream.

    Stream ids rise in the order in which ACCEPTED messages are sent, so a server gives them out when it sends
    one. With ``replayed`` the request was there already, as a stream of any number: nothing is started, and
    its frames are sent only after a RESUME, from wherever the client says.
    """

    sequence_id: int
    stream_id: int
    durability: Durability
    replayed: bool = False
    first_available_id: int = 1
    last_id: int = 0


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
class Resumed:
    """The first answer to RESUME; the stream's frames from ``next_id`` follow, the first with whole text.

    ``last_id`` is the last frame there is, 0 if none; while the stream is ``live`` there may be more.
    """

    stream_id: int
    next_id: int
    epoch: int
    first_available_id: int
    last_id: int
    live: bool


@frozen(kw_only=True)
class ResumeRejected:
    """The other answer to RESUME: no frame of the stream follows, now or later."""

    stream_id: int
    code: ResumeFailure
    first_available_id: int = 1
    last_id: int = 0


@frozen(kw_only=True)
class StreamCheckpoint:
    """A stream at a checkpoint: a frame, and the first 16 bytes of the SHA-256 of the text up to its end."""

    stream_id: int
    frame_id: int
    digest: bytes


@frozen(kw_only=True)
class Checkpoint:
    """Everything up to here is as safe as ``ack_level`` says: client messages, and frames by stream."""

    sequence_id: int
    timestamp_ms: int
    ack_level: AckLevel
    streams: tuple[StreamCheckpoint, ...] = ()


@frozen(kw_only=True)
class GoAway:
    """The server will close; streams go on until it does, new requests are refused."""

    reason: str
    reconnect_to: str | None = None
    deadline_ms: int | None = None


@frozen(kw_only=True)
class Flow:
    """How fast a stream goes, for information: its reader's window is filling up, full, or open again.

    Attributes:
        stream_id: The stream.
        action: What the server does.
        window: Frames that may now be unacknowledged.
    """

    stream_id: int
    action: FlowAction
    window: int


@frozen(kw_only=True)
class Status:
    """Why there is no text of a stream yet, for information.

    Attributes:
        stream_id: The stream.
        phase: What it is doing.
        position: Queued: how many requests will be begun before it.
        estimated_wait_ms: How long until its first text, where the server can tell.
        tokens_done: Prefill: tokens of the prompt that the model has read.
        tokens_total: Prefill: tokens that it has to read.
    """

    stream_id: int
    phase: Phase
    position: int | None = None
    estimated_wait_ms: int | None = None
    tokens_done: int | None = None
    tokens_total: int | None = None


ClientMessage: TypeAlias = Hello | Submit | Cancel | Resume | Ack | Event | Bye
ServerMessage: TypeAlias = (
    Welcome | Accepted | Refused | Checkpoint | Resumed | ResumeRejected | Flow | Status | GoAway | Frame
)
Message: TypeAlias = ClientMessage | ServerMessage
