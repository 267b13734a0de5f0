"""Runs checks against an implementation, one after the other, each in a bounded time, and says what came.

Between two checks the implementation is told to close what it has; a process that broke is started again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from enum import Enum
from typing import Any, Self, TypeVar

import trio
from attrs import frozen

from conformance import (
    capability_checks,
    client_checks,
    client_session_checks,
    server_checks,
    server_session_checks,
)
from conformance.checks import EVERY, Check, Role, checks
from conformance.client_stage import client_stage
from conformance.peer import CheckFailed
from conformance.server_stage import ServerStage, server_stage
from conformance.subject import Refusal, Subject, SubjectBroken, running_subject

__all__ = ["CHECK_MODULES", "Outcome", "Result", "run"]

CHECK_MODULES = (
    client_checks,
    client_session_checks,
    server_checks,
    server_session_checks,
    capability_checks,
)
"""Importing them registers the checks."""

START_S = 60.0
"""For its start; a server may load something."""
RESET_S = 3.0
"""For dropping everything after a check that failed."""
CHECK_S = 10.0
"""For one check. Ours take a fraction of a second each."""
LONG_CHECK_S = 300.0
"""For one that a short run leaves out, such as a cut at every byte."""

T = TypeVar("T")
_FAILURES = (CheckFailed, Refusal, SubjectBroken)


class Outcome(Enum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@frozen
class Result:
    """One check under one subprotocol.

    Attributes:
        check: The check.
        subprotocol: Under which.
        outcome: What came of it.
        reason: Why it failed or was skipped.
        seconds: How long it took.
    """

    check: Check
    subprotocol: str
    outcome: Outcome
    reason: str
    seconds: float


async def run(
    command: Sequence[str],
    role: Role,
    *,
    short: bool = False,
    only: str = "",
    subprotocols: Sequence[str] = EVERY,
    check_s: float = CHECK_S,
    report: Callable[[Result], object] = lambda _: None,
) -> list[Result]:
    """Runs the checks of a role.

    Args:
        command: Starts the implementation.
        role: Which end it is.
        short: Leave the long ones out.
        only: Run those alone whose name contains this.
        subprotocols: Run under these alone.
        check_s: Time for one check that is not long.
        report: Told each result as it comes.

    Raises:
        SubjectBroken: It does not even start.
    """
    results: list[Result] = []
    async with _Implementation(command, role) as implementation:
        for check in checks(role):
            if only not in check.name or (short and check.is_long):
                continue
            for subprotocol in (each for each in check.subprotocols if each in subprotocols):
                reason = implementation.why_not(check, subprotocol)
                if reason is None:
                    await implementation.refresh()
                    result = await _judge(implementation, check, subprotocol, check_s)
                else:
                    result = Result(check, subprotocol, Outcome.SKIPPED, reason, 0.0)
                report(result)
                results.append(result)
    return results


async def _judge(implementation: _Implementation, check: Check, subprotocol: str, check_s: float) -> Result:
    started = trio.current_time()
    limit_s = LONG_CHECK_S if check.is_long else check_s
    reason = ""
    try:
        with trio.move_on_after(limit_s) as patience:
            await implementation.perform(check, subprotocol)
        if patience.cancelled_caught:
            reason = f"nothing came of it within {limit_s:g} s"
    except _FAILURES as failure:
        reason = str(failure)
    except BaseExceptionGroup as group:
        failures, others = group.split(_FAILURES)
        if failures is None or others is not None:
            raise
        reason = "; ".join(map(str, _leaves(failures)))
    outcome = Outcome.FAILED if reason else Outcome.PASSED
    return Result(check, subprotocol, outcome, reason, trio.current_time() - started)


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def _in_time(answer: Awaitable[T]) -> T:
    with trio.move_on_after(START_S):
        return await answer
    raise SubjectBroken(f"it did not start within {START_S:g} s")


class _Implementation:
    """The process under test, started anew when it broke."""

    def __init__(self, command: Sequence[str], role: Role) -> None:
        self._command = command
        self._role = role
        self._stack = AsyncExitStack()
        self._subject: Subject
        self._is_sound = False
        self._server: ServerStage | None = None
        self._abilities: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _begin(self) -> None:
        subject = await self._stack.enter_async_context(running_subject(self._command))
        self._abilities = await _in_time(subject.ask("start"))
        if self._role not in self._abilities.get("roles", ()):
            raise SubjectBroken(f"it is no {self._role}")
        if self._role == "server":
            self._server = await _in_time(server_stage(subject))
        self._subject, self._is_sound = subject, True

    def why_not(self, check: Check, subprotocol: str) -> str | None:
        """Why a check is skipped, None where it is not."""
        if subprotocol not in self._abilities.get("subprotocols", ()):
            return f"it does not speak {subprotocol}"
        if check.feature is not None and check.feature not in self._abilities.get("features", ()):
            return f"it has no {check.feature!r}"
        return None

    async def refresh(self) -> None:
        """After a check that failed: has a client drop all that it has, and starts anew what does not answer.

        A server needs nothing: it has to stand whatever a client did.
        """
        if self._is_sound:
            return
        if self._role == "client":
            with suppress(Refusal, SubjectBroken), trio.move_on_after(RESET_S):
                await self._subject.ask("reset")
                self._is_sound = True
        else:
            self._is_sound = not self._subject.is_over
        if not self._is_sound:
            await self._stack.aclose()
            await self._start()

    async def perform(self, check: Check, subprotocol: str) -> None:
        """Runs one check.

        Raises:
            CheckFailed: It failed, as it did with any of the errors of `subject`.
        """
        self._is_sound = False
        if self._role == "client":
            async with client_stage(self._subject, subprotocol) as stage:
                await check.work(stage)
                await self._subject.ask("reset")
        else:
            assert self._server is not None
            async with self._server.speaking(subprotocol) as server:
                await check.work(server)
        self._is_sound = True
