"""Every example of the SDK's pages is run as written, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import seedance_sdk
from seedance_sdk import errors
from seedance_sdk.options import Options
from seedance_sdk.testing import Answer, ScriptedServer
from seedance_wire.messages import Submit
from tests.sdk.tcp_server import served

ROOT = Path(__file__).parents[2]
TOPICS = (
    *("quick-start", "conversations", "resume", "errors", "back-pressure", "asyncio"),
    *("endpoints", "latency", "testing"),
)
PAGES = [ROOT / "docs" / f"{topic}.md" for topic in TOPICS] + [ROOT / "seedance_sdk" / "README.md"]
ADDRESS = "ws://localhost:8080/v1/chat"

SKY = ("Air", " scatters", " blue", " light", " most.")
DUSK = ("Then its way is long,", " and red is left.")


def examples() -> Iterator[object]:
    """Yields each example with what it prints, None where the page does not say."""
    for page in PAGES:
        blocks = re.finditer(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", page.read_text(), re.DOTALL)
        for number, block in enumerate(blocks, 1):
            if "fastapi" in block[1]:
                continue  # see test_fastapi
            line = page.read_text()[: block.start()].count("\n") + 1
            yield pytest.param(page, line, *block.groups(), id=f"{page.stem}-{number}")


def answer(request: Submit) -> Answer:
    asked = request.prompt or (request.messages or ())[-1].content or ""
    return Answer(*(DUSK if "dusk" in asked else SKY))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the examples find a server."""
    with served(ScriptedServer(respond=answer)) as address:
        yield address


@pytest.mark.slow  # real clock: some of them lose connections, or take their time
@pytest.mark.parametrize(("page", "line", "code", "printed"), list(examples()))
def test_example_runs_and_prints_what_its_page_says(
    page: Path, line: int, code: str, printed: str | None, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is documented is true, word by word."""
    monkeypatch.setenv("SEEDANCE_URL", url)
    shown = io.StringIO()
    program = compile("\n" * line + code.replace(ADDRESS, url), str(page), "exec")
    with contextlib.redirect_stdout(shown):
        exec(program, {"__name__": "__main__"})
    if printed is not None:
        assert shown.getvalue().strip() == printed.strip()


def test_pages_are_all_run() -> None:
    """A page that nobody runs would rot; one that is not listed would not be found."""
    index = (ROOT / "docs" / "README.md").read_text()
    for topic in TOPICS:
        assert f"({topic}.md)" in index
    assert len(list(examples())) > 15


def test_errors_are_all_on_their_page() -> None:
    """Whoever meets an error finds what to do about it."""
    page = (ROOT / "docs" / "errors.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    kinds = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert kinds - named == set()
    table = set(re.findall(r"^\| (?:\*\*.*?\*\*: )?`(\w+)` \|", page, re.MULTILINE))
    assert table <= set(seedance_sdk.__all__)


def test_parameters_are_all_on_their_page() -> None:
    """Each option is in the tables of the quick start, and no other is."""
    page = (ROOT / "docs" / "quick-start.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(Options.__annotations__)
