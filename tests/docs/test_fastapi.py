"""The FastAPI example of the asyncio page, as written, in a real uvicorn, over real connections."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from seedance_sdk.testing import Answer, ErrorCode, Refusal, ScriptedServer
from seedance_wire.messages import Submit
from tests.sdk.tcp_server import served

for needed in ("fastapi", "uvicorn"):
    pytest.importorskip(needed, reason="needs fastapi and uvicorn: ./nox -s test brings both")

PAGE = Path(__file__).parents[2] / "docs" / "asyncio.md"


def eventually(condition: Callable[[], object]) -> None:
    """Waits for what another process is about to do; thirty seconds are for a machine in trouble."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def respond(request: Submit) -> Answer | Refusal:
    asked = (request.messages or ())[-1].content
    if asked == "refuse":
        return Refusal(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long")
    return Answer("Air scatters", " blue light", " most.", endless=asked == "endless")


@pytest.fixture(scope="module")
def server() -> ScriptedServer:
    return ScriptedServer(respond=respond)


@pytest.fixture(scope="module")
def port(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a uvicorn that serves the page's application; it must end clean."""
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "FastAPI" in block
    )
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.py").write_text(code)
    with served(server) as url, socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", "--fd", str(listener.fileno())],
            cwd=folder,
            env={"SEEDANCE_URL": url, "PATH": "/usr/bin:/bin"},
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            _, said = process.communicate(timeout=30)
    assert "Application shutdown complete" in said
    assert "Traceback" not in said
    assert server.connections == 0


def asking(port: int, question: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/answer?question={question}")
    return connection


@pytest.mark.slow
def test_fastapi_streams_pieces_as_they_come(server: ScriptedServer, port: int) -> None:
    """The browser sees the first piece while the answer is not over, and the answer ends when it leaves."""
    with closing(asking(port, "endless")) as browser, browser.getresponse() as response:
        assert response.status == 200
        assert b"Air scatters blue light most.".startswith(response.read1())
        before = len(server.cancelled)
    eventually(lambda: len(server.cancelled) == before + 1)


@pytest.mark.slow
def test_fastapi_answers_many_at_once_and_refuses_in_order(server: ScriptedServer, port: int) -> None:
    """One client carries all requests of the application over one connection."""
    with ExitStack() as stack:
        browsers = [stack.enter_context(closing(asking(port, "why"))) for _ in range(8)]
        answers = [browser.getresponse().read() for browser in browsers]
    assert answers == 8 * [b"Air scatters blue light most."]
    with closing(asking(port, "refuse")) as browser:
        refused = browser.getresponse()
        assert (refused.status, b"too long" in refused.read()) == (400, True)
    assert len(server.endpoints) == 1
