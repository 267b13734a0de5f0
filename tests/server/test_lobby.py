"""Tests of `seedance_server.lobby`."""

import pytest
import trio

from seedance_server.lobby import FAIR_CHANCE_S, Lobby, address_group


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("unknown", None),
    ],
)
def test_address_group_is_what_one_attacker_owns(address: str, group: str | None) -> None:
    """An IPv6 customer owns a /64, so that is one address; a mapped IPv4 is the IPv4."""
    assert address_group(address) == group


async def test_lobby_turns_away_the_rest_of_a_crowded_address() -> None:
    """One address holds so many places; others aren't touched; a leave frees a place once."""
    lobby = Lobby(10, per_address=2)
    first, second, third = (lobby.enter("192.0.2.7") for _ in range(3))
    assert [visit.crowded for visit in (first, second, third)] == [False, False, True]
    assert not lobby.enter("192.0.2.8").crowded
    assert not any(lobby.enter("127.0.0.1").crowded for _ in range(5))
    third.leave()
    first.leave()
    first.leave()
    assert not lobby.enter("192.0.2.7").crowded
    assert lobby.enter("192.0.2.7").crowded


async def test_lobby_lets_the_oldest_give_way_after_a_fair_chance(autojump_clock) -> None:
    """A full lobby of slow drips never keeps a new connection out for long."""
    lobby = Lobby(2, per_address=2)
    oldest, newer = lobby.enter("127.0.0.1"), lobby.enter("127.0.0.1")
    began_s = trio.current_time()
    await lobby.wait_for_room()
    assert trio.current_time() - began_s == pytest.approx(FAIR_CHANCE_S)
    assert not oldest.scope.cancel_called, "nobody has come yet"
    lobby.enter("127.0.0.1")
    assert oldest.scope.cancel_called
    assert not newer.scope.cancel_called
    assert lobby.visits == 2


async def test_lobby_gives_the_place_of_one_that_left(autojump_clock) -> None:
    """Nobody is ended while places come free by themselves."""
    lobby = Lobby(1, per_address=2)
    visit = lobby.enter("127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lobby.wait_for_room)
        await trio.sleep(FAIR_CHANCE_S / 2)
        visit.leave()
    assert not visit.scope.cancel_called
    assert lobby.visits == 0


async def test_lobby_does_not_count_a_proxy_as_one_address() -> None:
    """Everybody who comes through it would be one client."""
    lobby = Lobby(10, 1, lambda address: address == "192.0.2.1")
    assert [lobby.enter("192.0.2.1").crowded for _ in range(3)] == [False] * 3
    assert [lobby.enter("192.0.2.2").crowded for _ in range(2)] == [False, True]
