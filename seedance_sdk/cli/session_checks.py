"""From the upgrade to a token: the examinations that speak the protocol, over one connection of their own."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable

import trio
from attrs import define

from seedance_sdk.cli.arguments import VERSION
from seedance_sdk.cli.finding import Finding, Verdict
from seedance_sdk.cli.network_checks import STEP_S, Hopeless, Tell
from seedance_sdk.cli.pace import format_ms
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.errors import (
    AuthenticationError,
    ConnectionFailed,
    PermissionDenied,
    ProtocolError,
    SeedanceError,
    Unavailable,
)
from seedance_sdk.limits import Limits
from seedance_sdk.transport import Connector, Transport
from seedance_wire.client_session import ClientSession, SessionEvent
from seedance_wire.messages import Checkpoint, Delta, Error, Flush, Hello, Refused, Sampling, Submit, Welcome

__all__ = ["check_session"]

_PINGS = 5
_ANSWER_S = 60.0
"""For one token: a model on a busy machine may be long at it."""
_SKEW_MS = 5_000.0
"""Of the clocks: logs of both sides can still be laid side by side."""


@define
class _Talk:
    """One connection, spoken over."""

    transport: Transport
    session: ClientSession

    async def send(self) -> None:
        for payload in self.session.data_to_send():
            await self.transport.send(payload)

    async def next_event(self) -> SessionEvent:
        while (event := self.session.next_event()) is None:
            self.session.receive_data(await self.transport.receive())
        return event


async def check_session(
    endpoint: Endpoint,
    tell: Tell,
    *,
    connector: Connector,
    with_request: bool,
    wall_clock: Callable[[], float] = time.time,
) -> None:
    """Upgrades, greets, pings, and asks for one token.

    Args:
        endpoint: Where.
        tell: Hears each finding.
        connector: Makes the connection.
        with_request: Whether to ask for a token.
        wall_clock: Seconds since 1970.

    Raises:
        Hopeless: Something failed, and was told.
    """
    began_s = time.perf_counter()
    try:
        async with connector(endpoint, Limits()) as transport:
            took = format_ms((time.perf_counter() - began_s) * 1e3)
            tell(Finding(Verdict.OK, "authentication", f"the server lets this client in ({took})"))
            session = ClientSession(
                endpoint.subprotocol, hello=Hello(sdk_name="seedance-doctor", sdk_version=VERSION)
            )
            talk = _Talk(transport, session)
            await transport.send(session.connect())
            await _greet(talk, tell)
            round_trip_ms = await _ping(transport, tell)
            if with_request:
                await _ask(talk, tell, round_trip_ms, wall_clock)
            session.bye()
            await talk.send()
    except SeedanceError as error:
        tell(_explain(error))
        raise Hopeless from error
    except trio.TooSlowError as error:
        tell(Finding(Verdict.FAIL, "protocol", "no answer", "is something in between holding frames back?"))
        raise Hopeless from error


def _explain(error: SeedanceError) -> Finding:
    """What an error of the connection means, and what to do."""
    words = str(error)
    match error:
        case AuthenticationError():
            advice = "set SEEDANCE_API_KEY or --api-key; `seedance-server keys add` on the server makes one"
            return Finding(Verdict.FAIL, "authentication", words, advice)
        case PermissionDenied():
            return Finding(Verdict.FAIL, "authentication", words, "ask whoever runs the server")
        case Unavailable():
            return Finding(
                Verdict.FAIL, "upgrade", words, "the server is there and full, loading or leaving: try again"
            )
        case ProtocolError():
            return Finding(
                Verdict.FAIL,
                "protocol",
                words,
                "client and server don't understand each other: compare versions",
            )
        case ConnectionFailed():
            advice = "is the path right, and does every proxy on the way pass WebSocket upgrades?"
            return Finding(Verdict.FAIL, "upgrade", words, advice)
    return Finding(Verdict.FAIL, "session", words)


async def _greet(talk: _Talk, tell: Tell) -> None:
    with trio.fail_after(STEP_S):
        while not isinstance(welcome := await talk.next_event(), Welcome):
            pass
    theirs = welcome.server_version or "unknown"
    words = f"server {theirs}, this SDK {VERSION}"
    if theirs == VERSION:
        tell(Finding(Verdict.OK, "versions", words))
    else:
        tell(Finding(Verdict.WARN, "versions", words, "they talk; what only one of them knows is not used"))
    words = f"{welcome.model}, {welcome.limits.max_context_tokens:,} tokens of context"
    if welcome.resume_token:
        tell(Finding(Verdict.OK, "model", f"{words}, answers kept {format_ms(welcome.retention_ms)}"))
    else:
        advice = "a lost connection loses its answers: start the server with --durability committed"
        tell(Finding(Verdict.WARN, "model", f"{words}, answers not kept", advice))


async def _ping(transport: Transport, tell: Tell) -> float:
    times = []
    for _ in range(_PINGS):
        began_s = time.perf_counter()
        with trio.fail_after(STEP_S):
            await transport.ping(secrets.token_bytes(4))
        times.append((time.perf_counter() - began_s) * 1e3)
    middle = statistics.median(times)
    tell(
        Finding(
            Verdict.OK,
            "round trip",
            f"{format_ms(middle)}, from {format_ms(min(times))} to {format_ms(max(times))}",
        )
    )
    return middle


async def _ask(talk: _Talk, tell: Tell, round_trip_ms: float, wall_clock: Callable[[], float]) -> None:
    submit = Submit(
        sequence_id=1,
        idempotency_key=secrets.token_bytes(16),
        prompt="Hello",
        sampling=Sampling(max_tokens=1),
    )
    began_s = time.perf_counter()
    talk.session.submit(submit)
    await talk.send()
    skew_ms: float | None = None
    finding = Finding(
        Verdict.WARN, "answer", "none within a minute", "is the model too slow, or the line long?"
    )
    with trio.move_on_after(_ANSWER_S):
        while True:
            event = await talk.next_event()
            if isinstance(event, Checkpoint):
                skew_ms = event.timestamp_ms + round_trip_ms / 2 - wall_clock() * 1e3
            elif isinstance(event, Delta):
                took = format_ms((time.perf_counter() - began_s) * 1e3)
                finding = Finding(Verdict.OK, "answer", f"the first token took {took}")
            elif isinstance(event, Refused | Error):
                finding = Finding(Verdict.WARN, "answer", event.message, "the server's log says more")
            if isinstance(event, Refused | Error) or (isinstance(event, Flush) and event.final is not None):
                break
    tell(finding)
    if skew_ms is not None:
        late = abs(skew_ms) > _SKEW_MS
        side = "ahead of" if skew_ms > 0 else "behind"
        words = f"the server's is {format_ms(abs(skew_ms))} {side} this one"
        advice = "set both by NTP: deadlines don't depend on it, logs and certificates do"
        tell(Finding(Verdict.WARN if late else Verdict.OK, "clock", words, advice if late else ""))
