"""The frames of a stream as frozen values, and what the last one says (S8, S9).

A frame is numbered from 1 in its stream; ``offset`` counts UTF-8 bytes of the stream's text before it. Plain
values without behaviour; read them from `messages.py`, which hands them on.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from .codes import ErrorCode, FinishReason

__all__ = [
    "Delta",
    "Error",
    "Final",
    "Flush",
    "Frame",
    "StageTiming",
    "TokenLogprob",
    "Usage",
]


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
