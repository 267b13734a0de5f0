"""What an application receives: pieces while they come, or the whole at once.

Plain values, the same for the async and the blocking client. They know nothing of connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from attrs import field, frozen

from seedance_wire.messages import StageTiming, TokenLogprob, Usage

__all__ = ["Chunk", "Completion", "FinishReason", "StageTiming", "TokenLogprob", "Usage"]

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]
"""``stop``: an end-of-sequence token or a stop of the caller's. ``length``: ``max_tokens`` or the model's
context was used up. ``cancelled``: the client asked for it."""


@frozen(kw_only=True)
class Chunk:
    """One piece of an answer.

    The last one of an answer has an empty ``delta`` and carries ``finish_reason``, ``usage`` and ``timing``.

    Attributes:
        delta: New text; whole characters only.
        id: Position in the stream, from 1. Ids may have gaps where the server only closed a segment.
        offset: UTF-8 bytes of the answer before this piece.
        token_count: Tokens behind ``delta``.
        received_at: When it arrived at this process, in seconds of ``time.monotonic()``.
        logprobs: One entry a token, where ``logprobs=True`` was asked for.
        finish_reason: Why the answer ended; None on all but the last.
        stop: The stop string or token id that ended it, if one of the caller's own did.
        usage: Tokens charged; None on all but the last.
        timing: Where the time to the first token went on the server, in milliseconds; None on all but the
            last.
    """

    delta: str
    id: int
    offset: int
    token_count: int
    received_at: float
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    usage: Usage | None = None
    timing: StageTiming | None = None


@frozen(kw_only=True)
class Completion:
    """A whole answer.

    Attributes:
        text: All pieces joined; its SHA-256 was compared with the server's. Of a resumed stream what came
            after the bookmark.
        finish_reason: Why it ended.
        stop: The stop string or token id that ended it, if one of the caller's own did.
        usage: Tokens charged.
        timing: Where the time to the first token went on the server, in milliseconds.
        logprobs: One entry a token, where ``logprobs=True`` was asked for.
        id: The stream's number in its session.
        session_id: The session, for ``continues``.
        extra: The request's labels, as given.
    """

    text: str
    finish_reason: FinishReason
    stop: str | int | None
    usage: Usage
    timing: StageTiming
    logprobs: tuple[TokenLogprob, ...] = ()
    id: int = 0
    session_id: str = ""
    extra: Mapping[str, object] = field(factory=dict, eq=False)
