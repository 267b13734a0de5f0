"""What a user gives as an address and a key, and what of it reaches the network."""

from __future__ import annotations

import pytest

from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.endpoint import Endpoint
from seedance_sdk.testing import Answer, ScriptedServer


def endpoint(url: str, api_key: str | None = None) -> Endpoint:
    return Endpoint.of(url, subprotocol="seedance.v1", api_key=api_key, user_agent="test")


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "target", "secure"),
    [
        ("ws://localhost:8080/v1/chat", "localhost", 8080, "localhost:8080", "/v1/chat", False),
        ("ws://localhost", "localhost", 80, "localhost", "/v1/chat", False),
        ("wss://h.example/", "h.example", 443, "h.example", "/v1/chat", True),
        ("wss://h.example:80/x?y=1#z", "h.example", 80, "h.example:80", "/x?y=1", True),
        ("ws://[::1]:9/v1/chat", "::1", 9, "[::1]:9", "/v1/chat", False),
    ],
)
def test_endpoint_completes_the_url(
    url: str, host: str, port: int, authority: str, target: str, secure: bool
) -> None:
    """Host header and request target follow RFC 9112 sections 3.2 and 3.2.1."""
    made = endpoint(url)
    assert (made.host, made.port, made.authority, made.target, made.secure) == (
        host,
        port,
        authority,
        target,
        secure,
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "http://localhost",
        "ws://",
        "ws://user:secret@host/",
        "ws://host:port/",
        "ws://host:70000/",
        "ws://höst/",
        "ws://a..b/",
        "ws://.host/",
        f"ws://{'a' * 64}/",
        "ws://host/a b",
        "ws://host/\r\nX: y",
    ],
)
def test_endpoint_refuses_what_is_no_websocket_url(url: str) -> None:
    """A mistake in the address is found when the client is made, and no credential is taken from a URL."""
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        endpoint(url)


@pytest.mark.parametrize("api_key", ["", "a b", "a\r\nX: y", "ключ", "a\x00"])
def test_endpoint_refuses_a_key_that_would_break_a_header(api_key: str) -> None:
    """No header can be smuggled in through a key."""
    with pytest.raises(ValueError, match="API key"):
        endpoint("ws://host", api_key)


def test_endpoint_sends_the_key_and_never_shows_it() -> None:
    """The key goes into the Authorization header and into no repr, so into no log."""
    made = endpoint("ws://host", "sk-secret")
    assert made.headers["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(made)


def test_endpoint_refuses_a_subprotocol_that_there_is_not() -> None:
    """Found when the client is made, with the choices, and not by the first request."""
    with pytest.raises(ValueError, match=r"seedance\.v1, seedance\.v1\.json"):
        Endpoint.of("ws://host", subprotocol="foo", api_key=None, user_agent="test")


@pytest.mark.parametrize(
    ("session_id", "sent"),
    [
        (None, None),
        ("0123abcd", "0123abcd"),
        ("a\r\nX: y", None),
        ("a b", None),
        ("é", None),
        ("x" * 200, None),
    ],
)
def test_endpoint_names_the_session_that_a_client_comes_back_to(session_id, sent) -> None:
    """A hint for proxies in front of several servers; what a server called it can't break the head."""
    made = endpoint("ws://host", "sk-secret").in_session(session_id)
    assert made.headers.get("Seedance-Session") == sent
    assert made.headers["Authorization"] == "Bearer sk-secret"
    assert (made.url, made.subprotocol) == (endpoint("ws://host").url, endpoint("ws://host").subprotocol)


async def test_endpoint_names_no_session_at_first_and_then_it_does(autojump_clock) -> None:
    """The server has to know the session before it can be named."""
    server = ScriptedServer(Answer("a ", "b ", "c", delay_s=1))
    async with AsyncSeedanceClient(connector=server) as client:
        stream = await client.chat(messages=[{"role": "user", "content": "Hi"}], stream=True)
        assert (await anext(stream)).delta == "a "
        server.cut()
        assert (await stream.collect()).text == "a b c"
        session_id = stream.session_id
    assert [made.headers.get("Seedance-Session") for made in server.endpoints] == [None, session_id]
