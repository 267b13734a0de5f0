"""What is measured of an answer, and how the numbers are made from it.

The client's clock is the only one used for latencies: `started_s` is taken before the request is handed to
the SDK, an arrival is the moment the piece reached this process. Percentiles are values that occurred
(nearest rank), never interpolated between two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from seedance_sdk import AsyncSeedanceClient, Chunk, StageTiming

__all__ = ["Answer", "ask", "first_error", "milliseconds", "percentile"]


@define
class Answer:
    """One request and what came of it.

    Attributes:
        started_s: When it was asked, on the monotonic clock.
        ended_s: When its last piece arrived, or when it failed.
        arrivals_s: When each piece with text arrived.
        tokens: Tokens generated, as the server charged them.
        text: What was received.
        timing: The server's account of the time to the first token.
        error: Why it failed, or None.
    """

    started_s: float
    ended_s: float = math.nan
    arrivals_s: list[float] = field(factory=list)
    tokens: int = 0
    text: str = ""
    timing: StageTiming | None = None
    error: str | None = None

    @property
    def first_token_s(self) -> float:
        """Time to the first piece of text; NaN if none came."""
        return self.arrivals_s[0] - self.started_s if self.arrivals_s else math.nan

    @property
    def gaps_s(self) -> list[float]:
        """Times between pieces, in the order in which they came."""
        return [later - earlier for earlier, later in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]

    @property
    def tokens_per_second(self) -> float:
        """Decoding rate after the first token; NaN for an answer of a single piece."""
        spent_s = self.arrivals_s[-1] - self.arrivals_s[0] if self.arrivals_s else 0.0
        return (self.tokens - 1) / spent_s if spent_s > 0 else math.nan


async def ask(
    client: AsyncSeedanceClient,
    request: Mapping[str, Any],
    on_text: Callable[[str], None] = lambda _text: None,
) -> Answer:
    """Send one request and read its answer to the end.

    Args:
        client: A connected client.
        request: Arguments of `client.chat` if it has `messages`, else of `client.complete`.
        on_text: Called with each piece of text when it arrives.

    Raises:
        seedance_sdk.SeedanceError: The request failed.
    """
    answer = Answer(time.monotonic())
    send: Callable[..., Any] = client.chat if "messages" in request else client.complete
    async with await send(**request, stream=True) as stream:
        async for chunk in stream:
            _note(answer, chunk)
            if chunk.delta:
                on_text(chunk.delta)
    return answer


def _note(answer: Answer, chunk: Chunk) -> None:
    answer.ended_s = chunk.received_at
    if chunk.delta:
        answer.arrivals_s.append(chunk.received_at)
        answer.text += chunk.delta
    if chunk.usage is not None:
        answer.tokens = chunk.usage.completion_tokens
        answer.timing = chunk.timing


def first_error(failures: BaseExceptionGroup[Exception]) -> Exception:
    """Return one of the errors in a group: when a connection fails, its streams all say the same."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed; NaN for none."""
    ordered = sorted(value for value in values if not math.isnan(value))
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def milliseconds(seconds: float) -> str:
    """Write a time for a table, in milliseconds without the unit."""
    return "-" if math.isnan(seconds) else f"{seconds * 1000:.0f}"
