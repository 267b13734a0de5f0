"""Tests of `seedance_server.playground.page`: what is served, and under which policy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.types import Message

import seedance_server.playground.page
from seedance_server.playground.page import POLICY, page_routes

PAGE = Path(seedance_server.playground.page.__file__).parent
PARTS = sorted(path.name for path in PAGE.iterdir() if path.suffix in {".css", ".js", ".svg"})


async def get(path: str, *headers: tuple[bytes, bytes]) -> tuple[int, dict[str, str], bytes]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": list(headers)}
    await Starlette(routes=page_routes())(scope, receive, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], head, b"".join(message.get("body", b"") for message in sent[1:])


async def test_page_is_served_at_the_root():
    """It is the first thing that somebody who opens the address sees."""
    status, headers, body = await get("/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert body == (PAGE / "index.html").read_bytes()


@pytest.mark.parametrize("name", PARTS)
async def test_each_part_is_served_under_its_name(name: str):
    """A browser that is told not to guess needs the right type, for a module above all."""
    status, headers, body = await get(f"/playground/{name}")
    kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert status == 200
    assert headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]
    assert body == (PAGE / name).read_bytes()


@pytest.mark.parametrize("path", ["/", "/playground/app.js"])
async def test_policy_allows_nothing_inline_and_nothing_foreign(path: str):
    """Whatever a model says, nothing of it can become script, style or a request to elsewhere."""
    _, headers, _ = await get(path)
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert "*" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"


async def test_page_is_not_sent_again_when_the_browser_has_it():
    """A new release is seen at once, an old page costs nothing."""
    _, headers, _ = await get("/playground/app.js")
    status, again, body = await get(
        "/playground/app.js", (b"if-none-match", b'"x", W/' + headers["etag"].encode())
    )
    assert (status, body) == (304, b"")
    assert again["etag"] == headers["etag"]
    assert (await get("/playground/app.js", (b"if-none-match", b'"x"')))[0] == 200


@pytest.mark.parametrize(
    "name",
    ["page.py", "__init__.py", "index.html", "..%2Fflags.py", "../flags.py", "", "app.js/", "nothing.js"],
)
async def test_nothing_else_is_served(name: str):
    """No path reaches the disk: only names that were there at the start are known."""
    assert (await get(f"/playground/{name}"))[0] in {404, 307}


def test_page_uses_nothing_from_elsewhere():
    """It works in a network without the internet, and tells nobody that it was opened."""
    for path in PAGE.iterdir():
        if path.suffix not in {".css", ".html", ".js", ".svg"}:
            continue
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"""(?:https?:)?//[a-z]|url\(|@import""", text) == [], path.name
        assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text) == [], (
            path.name
        )


def test_page_has_nothing_inline():
    """The policy would refuse it: no style attribute, no handler, no script in the page."""
    html = (PAGE / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", html) == []
    assert re.findall(r"<script(?![^>]*\ssrc=)", html) == []
