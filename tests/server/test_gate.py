"""Tests of `seedance_server.gate`."""

# ruff: noqa: ASYNC240 - files of a few lines
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import trio

from seedance_server.errors import KeyFileError
from seedance_server.gate import Gate, Pass
from seedance_server.key_file import add_key, revoke_key
from seedance_server.keys import make_key
from seedance_server.upgrade import HttpAnswer

ADDRESS = "203.0.113.7"
API_KEY = "s3cret-key-of-16+"


def new_key(path: Path, tenant: str, **settings: str) -> tuple[str, str]:
    text, key = make_key(tenant, os.urandom)
    add_key(path, key, settings)
    return text, key.id


async def until(condition: Callable[[], object]) -> None:
    """Waits; a thread at work doesn't hold the virtual clock, so nothing can be said of how long."""
    while not condition():  # noqa: ASYNC110 - a stand-in for time that goes by
        await trio.sleep(0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_gate_without_keys_lets_everybody_in_as_one_tenant() -> None:
    """Only loopback is listened on then."""
    gate = Gate(clock=lambda: 0.0)
    assert not gate.wants_key
    assert gate.admit(None, ADDRESS) == Pass("local", None)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER  "])
def test_gate_knows_the_operators_key_and_the_tenants(path: Path, scheme: str) -> None:
    """Each opens as its own tenant."""
    text, _ = new_key(path, "acme")
    gate = Gate(api_key=API_KEY, path=path, clock=lambda: 0.0)
    assert gate.admit(f"{scheme} {text} ", ADDRESS).tenant == "acme"
    assert gate.admit(f"{scheme} {API_KEY}", ADDRESS).tenant == "local"


def test_gate_gives_every_wrong_key_one_answer(path: Path) -> None:
    """No key, no form, unknown, revoked, wrong secret, wrong scheme: nothing tells them apart."""
    text, _ = new_key(path, "acme")
    old, old_id = new_key(path, "acme")
    revoke_key(path, old_id)
    unknown, _ = make_key("acme", os.urandom)
    gate = Gate(path=path, clock=lambda: 0.0)
    wrong = [None, "", "Bearer", "Bearer ", text, f"Basic {text}", f"Bearer {text}x", f"Bearer {old}"]
    wrong += [f"Bearer {unknown}", f"Bearer {text[:-1]}"]
    answers = {gate.admit(authorization, f"203.0.113.{n}") for n, authorization in enumerate(wrong)}
    (answer,) = answers
    assert isinstance(answer, HttpAnswer)
    assert answer.status == 401
    assert ("WWW-Authenticate", "Bearer") in answer.headers


def test_gate_slows_ten_thousand_guesses_and_nobody_else(path: Path) -> None:
    """Ten get 401, the others 429; a good key from elsewhere, or another from there, opens all along."""
    text, _ = new_key(path, "acme")
    other, _ = new_key(path, "acme")
    gate = Gate(path=path, clock=lambda: 5.0)
    statuses = []
    for number in range(10_000):
        guess = f"{text[:-6]}{number:06}"
        answer = gate.admit(f"Bearer {guess}", ADDRESS)
        assert isinstance(answer, HttpAnswer)
        statuses.append(answer.status)
        if number % 100 == 0:
            assert isinstance(gate.admit(f"Bearer {text}", "198.51.100.1"), Pass)
            assert isinstance(gate.admit(f"Bearer {other}", ADDRESS), Pass)
    assert statuses == [401] * 10 + [429] * 9_990
    shut = gate.admit(f"Bearer {text}", ADDRESS)  # the right guess finds nothing out
    assert isinstance(shut, HttpAnswer)
    assert (shut.status, shut.headers) == (429, (("Retry-After", "60"),))


def test_gate_slows_guesses_under_ever_new_ids(path: Path) -> None:
    """As those of one id: it can't be told which ids there are."""
    new_key(path, "acme")
    gate = Gate(path=path, clock=lambda: 5.0)
    answers = [gate.admit(f"Bearer {make_key('a', os.urandom)[0]}", ADDRESS) for _ in range(50)]
    assert [answer.status for answer in answers] == [401] * 10 + [429] * 40


async def test_gate_reads_a_changed_file_by_itself(path: Path, autojump_clock) -> None:
    """New keys open, revoked ones don't, tenants have their new limits; whoever listens is told."""
    text, key_id = new_key(path, "acme", weight="2")
    gate = Gate(path=path)
    changes = []
    gate.on_change = lambda: changes.append(trio.current_time())
    one = gate.admit(f"Bearer {text}", ADDRESS)
    assert gate.holds(one)
    async with trio.open_nursery() as nursery:
        await gate.reload()
        assert changes == []
        later, _ = new_key(path, "late")
        revoke_key(path, key_id)
        path.write_text(path.read_text().replace("weight = 2", "weight = 5"))
        nursery.start_soon(gate.run)
        await until(lambda: changes)
        nursery.cancel_scope.cancel()
    assert gate.admit(f"Bearer {later}", ADDRESS).tenant == "late"
    assert isinstance(gate.admit(f"Bearer {text}", ADDRESS), HttpAnswer)
    assert not gate.holds(one)
    assert gate.accounts.of("acme").tenant.weight == 5


@pytest.mark.parametrize("bad", ["[", None])
async def test_gate_keeps_its_keys_when_the_file_goes_bad_and_says_so_once(
    path: Path, autojump_clock, bad: str | None
) -> None:
    """Half an edit, or a file that is gone, shuts nobody out."""
    lines: list[str] = []

    def collect(_logger: object, method: str, event: dict[str, object]) -> dict[str, object]:
        lines.append(f"{method} {event['event']}")
        raise structlog.DropEvent

    structlog.configure(processors=[collect])
    text, _ = new_key(path, "acme")
    good = path.read_text()
    gate = Gate(path=path)
    path.unlink() if bad is None else path.write_text(bad)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run)
        await until(lambda: lines)
        await gate.reload()
        nursery.cancel_scope.cancel()
    assert isinstance(gate.admit(f"Bearer {text}", ADDRESS), Pass)
    assert lines == ["error the key file can't be used: the keys stay as they were"]
    await gate.reload(always=True)  # asked for: said again
    assert len(lines) == 2
    path.write_text(good)
    await gate.reload()
    assert lines[2:] == ["info key file read"]


def test_gate_does_not_open_with_a_bad_file(path: Path) -> None:
    """At start there is nothing to keep to."""
    with pytest.raises(KeyFileError):
        Gate(path=path, clock=lambda: 0.0)


def test_gate_lets_in_once_for_a_ticket(path: Path) -> None:
    """A ticket stands for the key that bought it, for one connection."""
    text, _ = new_key(path, "acme")
    gate = Gate(path=path, clock=lambda: 0.0)
    one = gate.admit(f"Bearer {text}", ADDRESS)
    assert isinstance(one, Pass)
    ticket = gate.issue_ticket(one)
    assert gate.admit(None, ADDRESS, ticket=ticket) == one
    again = gate.admit(None, ADDRESS, ticket=ticket)
    assert isinstance(again, HttpAnswer)
    assert again.status == 401


async def test_gate_refuses_a_ticket_when_its_key_was_revoked(path: Path) -> None:
    """Nobody comes in by a ticket who couldn't by the key."""
    text, id_ = new_key(path, "acme")
    gate = Gate(path=path, clock=lambda: 0.0)
    one = gate.admit(f"Bearer {text}", ADDRESS)
    assert isinstance(one, Pass)
    ticket = gate.issue_ticket(one)
    revoke_key(path, id_)
    await gate.reload()
    refused = gate.admit(None, ADDRESS, ticket=ticket)
    assert isinstance(refused, HttpAnswer)
    assert refused.status == 401


def test_gate_counts_no_stale_ticket_as_a_guess(path: Path) -> None:
    """A page that comes late with its ticket doesn't lock out its address."""
    text, _ = new_key(path, "acme")
    gate = Gate(path=path, clock=lambda: 0.0)
    for _ in range(100):
        assert isinstance(gate.admit(None, ADDRESS, ticket="stale"), HttpAnswer)
    assert isinstance(gate.admit(f"Bearer {text}", ADDRESS), Pass)
