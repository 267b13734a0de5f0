"""Tests of `seedance_server.upgrade`."""

import pytest

from seedance_server.errors import BadRequestHead
from seedance_server.request_head import RequestHead
from seedance_server.upgrade import (
    HttpAnswer,
    Upgrade,
    canonical_head,
    check_upgrade,
    is_allowed_origin,
    ticket_of,
)

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
GOOD = {
    "host": "localhost:8080",
    "upgrade": "websocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": KEY,
    "sec-websocket-protocol": "other, seedance.v1.json, seedance.v1",
}


def decide(
    changes: dict[str, str | None] | None = None,
    *,
    method="GET",
    http_version="1.1",
    wants_key=False,
    allow=(),
):
    headers = {**GOOD, **(changes or {})}
    head = RequestHead(
        method=method,
        target="/v1/chat",
        http_version=http_version,
        headers=tuple((name, value) for name, value in headers.items() if value is not None),
    )
    return check_upgrade(head, wants_key=wants_key, allow_origins=allow)


def test_a_good_request_is_reduced_to_its_key_and_a_subprotocol() -> None:
    """The server's preference wins; nothing else of the client's head goes further."""
    assert decide() == Upgrade(KEY, "seedance.v1")
    assert decide({"sec-websocket-protocol": "seedance.v1.raw"}) == Upgrade(KEY, "seedance.v1.raw")
    written = canonical_head(Upgrade(KEY, "seedance.v1")).decode()
    assert written.endswith("\r\n\r\n")
    assert "extensions" not in written.lower()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"upgrade": None}, 426),
        ({"upgrade": "h2c"}, 426),
        ({"connection": "keep-alive"}, 400),
        ({"connection": None}, 400),
        ({"sec-websocket-version": "8"}, 426),
        ({"sec-websocket-version": None}, 426),
        ({"sec-websocket-key": None}, 400),
        ({"sec-websocket-key": "c2hvcnQ="}, 400),
        ({"sec-websocket-key": "!" * 24}, 400),
        ({"sec-websocket-key": KEY + "\t"}, 101),
        ({"sec-websocket-protocol": None}, 400),
        ({"sec-websocket-protocol": "seedance.v2"}, 400),
        ({"origin": "https://evil.example"}, 403),
    ],
)
def test_each_rule_has_its_status(changes: dict[str, str | None], status: int) -> None:
    """A refusal says why in HTTP, before the upgrade."""
    decision = decide(changes)
    assert (101 if isinstance(decision, Upgrade) else decision.status) == status


def test_refusals_say_what_to_do() -> None:
    """426 names the upgrade, 400 lists the subprotocols, 405 the method."""
    assert ("Upgrade", "websocket") in decide({"upgrade": None}).headers
    unknown = decide({"sec-websocket-protocol": "x"})
    assert all(name in unknown.body for name in ("seedance.v1", "seedance.v1.json", "seedance.v1.raw"))
    assert decide(method="POST").status == 405
    assert decide(http_version="1.0").status == 400


SAME = [
    ("http://localhost:8080", "localhost:8080"),
    ("http://127.0.0.1:8080", "127.0.0.1:8080"),
    ("http://[::1]:8080", "[::1]:8080"),
    ("http://localhost", "localhost"),
    ("http://localhost", "localhost:80"),
    ("https://localhost", "localhost:443"),
]
OTHER = [
    ("null", "localhost:8080"),
    ("", "localhost:8080"),
    ("http://localhost:8081", "localhost:8080"),
    ("http://localhost", "localhost:8080"),
    ("https://localhost", "localhost:80"),
    ("http://localhost.evil.example:8080", "localhost:8080"),
    ("http://evil-localhost:8080", "localhost:8080"),
    ("http://localhost:8080.evil.example", "localhost:8080"),
    ("http://localhost:8080/path", "localhost:8080"),
    ("http://user@localhost:8080", "localhost:8080"),
    ("http://localhost:8080@evil.example", "localhost:8080"),
    ("http://127.0.0.1:8080", "localhost:8080"),
    ("ftp://localhost:8080", "localhost:8080"),
    ("file://", "localhost:8080"),
    ("chrome-extension://abc", "localhost:8080"),
    ("http://localhost:99999", "localhost:99999"),
    ("http://[::1", "[::1"),
    ("http://localhost:8080 ", "localhost:8080"),
    ("//localhost:8080", "localhost:8080"),
    ("http://", ""),
    ("http://evil.example:8080", "evil.example:8080"),  # DNS rebinding: the page's own name points here
]


@pytest.mark.parametrize(("origin", "host"), SAME)
def test_a_page_of_this_server_may_connect(origin: str, host: str) -> None:
    """Same-origin is host and port equal to Host, the scheme's default port included."""
    assert is_allowed_origin(origin, host=host, allow_origins=(), any_name=False)


@pytest.mark.parametrize(("origin", "host"), OTHER)
def test_any_other_page_may_not_unless_listed(origin: str, host: str) -> None:
    """Tricks with null, case, port and suffix don't pass; the operator's list does, exactly."""
    assert not is_allowed_origin(origin, host=host, allow_origins=("https://good.example",), any_name=False)
    assert is_allowed_origin(origin, host=host, allow_origins=(origin,), any_name=False)


def test_a_named_server_trusts_its_own_page_only_with_a_key() -> None:
    """Without a key a rebound name would look like ours; with one it gets nowhere."""
    assert is_allowed_origin("https://a.example", host="a.example", allow_origins=(), any_name=True)
    assert not is_allowed_origin("https://a.example", host="a.example", allow_origins=(), any_name=False)


def test_an_answer_is_whole_and_closes() -> None:
    """Length, no caching, close; HEAD gets the head alone."""
    answer = HttpAnswer(503, "draining", (("Retry-After", "1"),))
    head, _, body = answer.encode().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1" in head
    assert b"Connection: close" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert answer.encode(with_body=False) == head + b"\r\n\r\n"


def offering(*subprotocols: str) -> RequestHead:
    headers = GOOD | {"sec-websocket-protocol": ", ".join(subprotocols)}
    return RequestHead(method="GET", target="/v1/chat", http_version="1.1", headers=tuple(headers.items()))


def test_a_ticket_is_found_among_the_subprotocols() -> None:
    """A browser has no other place for it; the subprotocol is chosen as if it weren't there."""
    head = offering("seedance.v1.json", "seedance.ticket.aB-_9")
    assert ticket_of(head) == "aB-_9"
    assert check_upgrade(head, wants_key=True, allow_origins=()) == Upgrade(KEY, "seedance.v1.json")
    assert ticket_of(offering("seedance.v1.json")) is None


def test_two_tickets_are_refused() -> None:
    """Nobody sends two by mistake."""
    with pytest.raises(BadRequestHead, match="more than one ticket"):
        ticket_of(offering("seedance.v1.json", "seedance.ticket.a", "seedance.ticket.b"))
