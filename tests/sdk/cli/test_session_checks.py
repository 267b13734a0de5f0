"""Tests of `seedance_sdk.cli.session_checks`."""

from collections.abc import Callable

import pytest
import trio

from seedance_sdk.cli.finding import Finding, Verdict
from seedance_sdk.cli.network_checks import Hopeless
from seedance_sdk.cli.session_checks import check_session
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.testing import Answer, ErrorCode, Refusal, ScriptedServer

ENDPOINT = Endpoint.of("ws://scripted", subprotocol="seedance.v1", api_key=None, user_agent="test")


async def examine(
    server: ScriptedServer, *, wall_clock: Callable[[], float] = trio.current_time
) -> dict[str, Finding]:
    found: list[Finding] = []
    await check_session(ENDPOINT, found.append, connector=server, with_request=True, wall_clock=wall_clock)
    return {finding.topic: finding for finding in found}


async def test_session_is_greeted_pinged_and_asked() -> None:
    """One connection, one token, and a goodbye."""
    server = ScriptedServer(Answer("H"))
    found = await examine(server)
    assert found.pop("versions").verdict is Verdict.WARN  # the script has a version of its own
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert server.requests[0].sampling.max_tokens == 1
    assert server.connections == 0


@pytest.mark.parametrize(("ahead_s", "words"), [(-60.0, "1 min ahead of"), (60.0, "1 min behind")])
async def test_clocks_that_differ_are_a_warning(ahead_s: float, words: str) -> None:
    """Logs of both sides could not be laid side by side."""
    clock = (await examine(ScriptedServer(Answer("H")), wall_clock=lambda: trio.current_time() + ahead_s))[
        "clock"
    ]
    assert clock.verdict is Verdict.WARN
    assert clock.words == f"the server's is {words} this one"


@pytest.mark.parametrize(
    ("status", "topic"),
    [(401, "authentication"), (403, "authentication"), (503, "upgrade"), (404, "upgrade")],
)
async def test_refused_upgrade_says_whose_matter_it_is(status: int, topic: str) -> None:
    """A key, a full server, and a wrong path want different things done."""
    found: list[Finding] = []
    with pytest.raises(Hopeless):
        await check_session(
            ENDPOINT, found.append, connector=ScriptedServer(refuse_status=status), with_request=True
        )
    [finding] = found
    assert (finding.verdict, finding.topic) == (Verdict.FAIL, topic)
    assert finding.advice


async def test_refused_request_is_a_warning() -> None:
    """All is well up to there: the server is full, or its model failed."""
    found = await examine(ScriptedServer(Refusal(ErrorCode.OVERLOADED, "too much to do")))
    assert (found["answer"].verdict, found["answer"].words) == (Verdict.WARN, "too much to do")


async def test_server_that_keeps_nothing_is_a_warning() -> None:
    """A lost connection would lose its answers."""
    assert (await examine(ScriptedServer(Answer("H"), durable=False)))["model"].verdict is Verdict.WARN
