"""A real, headless browser on a page of a real server; skipped with the reason where there is none."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field

from tests.faults.server_process import ServerProcess
from tests.numbers_process import numbers_process

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_WATCH = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`violated: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


@define(slots=False)  # the browser's driver hangs names of its own on it
class Wire:
    """What a page's WebSockets carried.

    Attributes:
        urls: Where each went.
        sent: The messages of the page.
    """

    urls: list[str] = field(factory=list)
    sent: list[Any] = field(factory=list)

    def watch(self, websocket: Any) -> None:
        """Looks at a new one."""
        self.urls.append(websocket.url)
        websocket.on("framesent", lambda payload: self.sent.append(json.loads(payload)))

    def of(self, kind: str) -> list[Any]:
        """The page's messages of a type."""
        return [message for message in self.sent if message["type"] == kind]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of a file: while its driver is there, an asyncio loop runs in this thread."""
    if _CHROMIUM is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        # No sandbox: tests often run as root, in a container; the only pages that it sees are ours.
        chromium = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[ServerProcess]:
    """One that wants no key, for the tests of a file."""
    with numbers_process(tmp_path_factory.mktemp("server"), step_ms=4) as server:
        yield server


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages in contexts of their own; none may have complained at the end, of whatever."""
    complaints: list[str] = []
    with contextlib.ExitStack() as stack:

        def open_one(
            server: ServerProcess,
            *,
            wire: Wire | None = None,
            expected: str = "",
            settings: Any = None,
            **options: Any,
        ) -> Page:
            """Opens the page.

            Args:
                server: Whose.
                wire: Sees what crosses it.
                expected: Complaints that this expression finds something in are part of the test.
                settings: What the page remembers of an earlier visit.
                **options: Of the browser's context: size, colours and such.
            """

            def note(text: str) -> None:
                if not expected or not re.search(expected, text):
                    complaints.append(text)

            context = stack.enter_context(browser.new_context(**options))
            page = context.new_page()
            page.set_default_timeout(20_000)
            page.add_init_script(_WATCH)
            if settings is not None:
                script = json.dumps(json.dumps(settings))
                page.add_init_script(f"localStorage['seedance.settings'] ??= {script}")
            page.on("console", lambda line: note(line.text) if line.type in {"error", "warning"} else None)
            page.on("pageerror", lambda error: note(str(error)))
            if wire is not None:
                page.on("websocket", wire.watch)
            page.goto(f"http://127.0.0.1:{server.port}/")
            return page

        yield open_one
    assert complaints == []
