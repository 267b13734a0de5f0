"""The closed sets of names that messages use: types, reasons, levels, codes.

Each has a number in `seedance.proto` and the string here in JSON. Read them from `messages.py`, which hands
them on.
"""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = [
    "AckLevel",
    "Durability",
    "ErrorCode",
    "FinishReason",
    "FlowAction",
    "FrameType",
    "OnDisconnect",
    "Phase",
    "ResumeFailure",
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
    COMMITTED = "committed"
    """It is on durable storage: the stream survives cuts of the connection and deaths of the server."""


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
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    """Another request was made under this idempotency key."""

    OVERLOADED = "overloaded"
    """A limit on streams or waiting requests is reached; try again."""
    RATE_LIMITED = "rate_limited"
    """This client sends faster than it may; try again after the time given."""
    DRAINING = "draining"
    """The server is shutting down; go elsewhere."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The request's own deadline passed."""
    JOURNAL_FULL = "journal_full"
    """The server has no room to keep the answer; try again later."""
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    """The stream was begun by another model, which the request does not allow to be changed."""
    ABANDONED = "abandoned"
    """Nobody came back for the stream in time."""

    NUMERICAL_ERROR = "numerical_error"
    """The model produced no usable probabilities for this sequence."""
    ENGINE_FAILED = "engine_failed"
    """The engine stopped, or again and again at this stream, as `retryable` says."""
    INTERNAL = "internal"
    """A bug in the server."""


class OnDisconnect(Enum):
    """What becomes of a stream whose connection is cut."""

    CONTINUE = "continue"
    """It goes on for a while and waits to be resumed."""
    CANCEL = "cancel"
    """It is cancelled at once."""


class AckLevel(Enum):
    """How safe everything up to a checkpoint is (S21)."""

    RECEIVED = "received"
    """The server has it in memory."""
    COMMITTED = "committed"
    """It is on durable storage."""
    REPLICATED = "replicated"
    """It is on durable storage of another machine as well."""


class ResumeFailure(Enum):
    """Why a stream cannot be resumed. Each is final: trying again changes nothing."""

    NOT_FOUND = "not_found"
    """There is no such stream in this session; nor is it said whether there ever was."""
    EXPIRED = "expired"
    """The stream is known, its frames are kept no more."""
    TRUNCATED = "truncated"
    """The frame after the one named is kept no more; later ones are."""
    CURSOR_AHEAD = "cursor_ahead"
    """The frame named was never written."""
    DIVERGED = "diverged"
    """The text that the client has is not the text that was sent."""
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    """Another model is served now, which the request does not allow to go on."""
    SUPERSEDED = "superseded"
    """A newer connection has this session."""


class FlowAction(Enum):
    """What a stream's window makes of its generation (S23)."""

    THROTTLE = "throttle"
    """The window is nearly full: it goes slower."""
    PAUSE = "pause"
    """The window is full: it stands."""
    RUN = "run"
    """There is room again: it goes at full speed."""


class Phase(Enum):
    """What a stream without new text is doing."""

    QUEUED = "queued"
    """It waits for its turn."""
    PREFILL = "prefill"
    """The model reads the prompt."""
