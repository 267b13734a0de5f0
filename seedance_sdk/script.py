"""What a scripted server says to a request: plain values, read through `seedance_sdk.testing`."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from seedance_wire.messages import ErrorCode, FinishReason, Flow, Status

__all__ = ["Answer", "Cut", "Piece", "Refusal"]


@frozen
class Cut:
    """The connection ends here, once; who resumes the stream gets what follows.

    Attributes:
        code: The close code; 1006 cuts without a goodbye.
        reason: The text that comes with it.
    """

    code: int = 1006
    reason: str = "closed by the script"


Piece: TypeAlias = str | Cut | Status | Flow


@frozen(init=False)
class Answer:
    """What the model says to one request.

    Args:
        *pieces: One DELTA frame for each text; a `Cut` ends the connection between two. A `Status` or `Flow`
            is told as it is, under the stream's own number whatever number it has.
        delay_s: Wait before each piece and before the end.
        finish_reason: How it ends.
        stop: The stop that ended it.
        error: End with an ERROR frame of this code instead.
        close_code: Close the connection with this code before the end: a `Cut` after the last piece.
        endless: Never end, but wait to be cancelled.
    """

    pieces: tuple[Piece, ...]
    delay_s: float
    finish_reason: FinishReason
    stop: str | int | None
    error: ErrorCode | None
    endless: bool

    def __init__(
        self,
        *pieces: Piece,
        delay_s: float = 0.0,
        finish_reason: FinishReason = FinishReason.STOP,
        stop: str | int | None = None,
        error: ErrorCode | None = None,
        close_code: int | None = None,
        endless: bool = False,
    ) -> None:
        last = () if close_code is None else (Cut(close_code),)
        self.__attrs_init__((*pieces, *last), delay_s, finish_reason, stop, error, endless)


@frozen
class Refusal:
    """A request that the server does not take.

    Attributes:
        code: Why.
        message: Why, for people.
        field: The field at fault.
        retryable: Whether to try again.
        retry_after_ms: When, in milliseconds.
    """

    code: ErrorCode
    message: str = "refused by the script"
    field: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None
