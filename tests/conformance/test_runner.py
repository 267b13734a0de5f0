"""Our own client and server keep the protocol, and broken ones are found out, each where it is broken."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.checks import BINARY, Role, checks
from conformance.runner import Outcome, run
from conformance.subject import SubjectBroken

SUBJECTS = Path(__file__).parents[2] / "wire" / "conformance" / "subjects"


def command(name: str, *faults: str) -> Sequence[str]:
    return (sys.executable, str(SUBJECTS / f"{name}.py"), *(f"--fault={fault}" for fault in faults))


async def failures(subject: Sequence[str], role: Role, check_s: float = 10.0) -> dict[str, str]:
    """The checks that failed, and why; the long ones are left to `nox -s conformance`."""
    results = await run(subject, role, short=True, subprotocols=BINARY, check_s=check_s)
    assert sum(result.outcome is Outcome.PASSED for result in results) > 15
    return {result.check.name: result.reason for result in results if result.outcome is Outcome.FAILED}


@pytest.mark.slow
async def test_our_client_conforms() -> None:
    """seedance-sdk does what the specification demands of a client."""
    assert await failures(command("sdk"), "client") == {}


@pytest.mark.slow
async def test_our_server_conforms() -> None:
    """seedance-server does what the specification demands of a server."""
    pytest.importorskip("seedance_server", reason="only the SDK is installed here")
    assert await failures(command("server"), "server") == {}


@pytest.mark.slow
async def test_broken_client_fails_where_it_is_broken() -> None:
    """Each seeded fault is found by the check of the rule that it breaks, and by no other."""
    faults = ("believes-any-digest", "fights-over-its-session", "new-key-each-time")
    assert set(await failures(command("sdk", *faults), "client", check_s=5.0)) == {
        "client/closes-on-a-checkpoint-that-differs",
        "client/never-fights-over-a-session",
        "client/submits-again-what-was-not-answered",
    }


@pytest.mark.slow
async def test_broken_server_fails_where_it_is_broken() -> None:
    """The same for a server."""
    pytest.importorskip("seedance_server", reason="only the SDK is installed here")
    faults = ("accepts-any-ack", "ignores-the-window", "takes-any-number")
    assert set(await failures(command("server", *faults), "server", check_s=5.0)) == {
        "server/counts-the-clients-messages",
        "server/keeps-to-the-window",
        "server/refuses-an-ack-of-what-was-not-sent",
    }


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("pass", "ended"),
        ("print('hello', flush=True); input()", "no answer"),
        ("""print('{"id": 1, "ok": {"roles": []}}', flush=True); input(); input()""", "no client"),
        ("""print('{"id": 1}', flush=True); input(); input()""", "neither"),
    ],
)
@pytest.mark.slow
async def test_program_that_is_no_implementation_is_said_to_be_none(program: str, reason: str) -> None:
    """It ends, talks nonsense or is the other end: no check is made, and the reason is told."""
    with pytest.raises(SubjectBroken, match=reason):
        await run((sys.executable, "-c", program), "client")


def test_checks_have_names_of_their_own_and_say_what_they_demand_and_where() -> None:
    """A check that nobody can look up helps nobody to mend anything."""
    page = (SUBJECTS.parents[1] / "PROTOCOL.md").read_text()
    every = (*checks("client"), *checks("server"))
    assert len({each.name for each in every}) == len(every) > 40
    for each in every:
        assert each.demand.endswith(".")
        assert f"# {each.section}\n" in page
