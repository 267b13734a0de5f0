"""Every example of the page about HTTP is run as written, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedance_server.http import asked
from tests.faults.server_process import numbers_server_here

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
KEY = "s3cret-key-of-16+"


def examples() -> Iterator[object]:
    """Yields each example with its language and what it prints."""
    blocks = re.finditer(r"```(python|sh)\n(.*?)```\n\n```text\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
    for number, block in enumerate(blocks, 1):
        yield pytest.param(*block.groups(), id=f"{block[1]}-{number}")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the examples find a server."""
    directory = tmp_path_factory.mktemp("http")
    journal = str(directory / "journal.db")
    with numbers_server_here(directory, "--api-key", KEY, "--journal", journal) as server:
        yield f"localhost:{server.port}"


def same(text: str) -> str:
    """Without what differs each time: names, and when they were made."""
    text = re.sub(r"cmpl-[0-9a-f]+", "cmpl-c0ffee", text)
    return re.sub(r'"created":\d+', '"created":1', text).strip()


@pytest.mark.parametrize(("language", "code", "printed"), list(examples()))
def test_example_prints_what_the_page_says(language: str, code: str, printed: str, address: str) -> None:
    """What is documented is true, word by word."""
    code = code.replace("localhost:8080", address)
    if language == "sh":
        run = subprocess.run(
            ["bash", "-e", "-c", code], env={**os.environ, "KEY": KEY}, capture_output=True, check=True
        )
        shown = run.stdout.decode()
    else:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {"KEY": KEY})
        shown = out.getvalue()
    assert same(shown) == same(printed)


def test_page_names_every_parameter() -> None:
    """Nothing is understood, let pass or refused without the page saying so."""
    page = PAGE.read_text()
    assert len(list(examples())) == page.count("```text")
    named = set(re.findall(r"`(\w+)`", page))
    assert {*asked._SAMPLING, *asked._LET_PASS, *asked._NEUTRAL} - named <= {"function_call", "tool_choice"}
