"""Tests of `seedance_server.proxies`."""

import pytest

from seedance_server.proxies import TrustedProxies, parse_network

PROXIES = TrustedProxies([parse_network("10.0.0.0/8"), parse_network("127.0.0.1"), parse_network("fd00::/8")])


@pytest.mark.parametrize(
    ("address", "forwarded", "client"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),  # said by nobody who is trusted
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.7"], "198.51.100.7"),
        ("10.1.2.3", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),  # the first was said by a client
        ("10.1.2.3", ["203.0.113.9", "198.51.100.7, 10.9.9.9"], "198.51.100.7"),  # two proxies
        ("10.1.2.3", ["198.51.100.7, nonsense"], "10.1.2.3"),
        ("10.1.2.3", ["", " "], "10.1.2.3"),
        ("10.1.2.3", ["10.4.4.4"], "10.4.4.4"),
        ("::ffff:127.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("fd00::5", ["2001:0db8::1"], "2001:db8::1"),
        ("unknown", ["198.51.100.7"], "unknown"),
    ],
)
def test_proxies_are_believed_as_far_as_they_are_trusted(address, forwarded, client) -> None:
    """From the right, and no further than the first that nobody vouches for."""
    assert PROXIES.client_of(address, forwarded) == client
    assert TrustedProxies().client_of(address, forwarded) == address


@pytest.mark.parametrize("text", ["", "host", "10.0.0.1/8", "10.0.0.0/33", "10.0.0"])
def test_networks_refuse_what_is_none(text: str) -> None:
    """A network with bits beyond its length is a slip of the pen."""
    with pytest.raises(ValueError, match="must be an address or a network"):
        parse_network(text)
