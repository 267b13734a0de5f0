"""The package as a whole: what importing it brings, and what it promises to type checkers."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import seedance_sdk
import seedance_wire
from seedance_sdk import errors

MODULES = [f"seedance_sdk.{module.name}" for module in pkgutil.iter_modules(seedance_sdk.__path__)]


@pytest.mark.slow
def test_import_brings_neither_torch_nor_the_server() -> None:
    """A client is small: nothing of the server's world comes with it."""
    program = f"import sys, {', '.join(MODULES)}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "seedance_wire" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "numpy", "seedance_server"})


@pytest.mark.parametrize("name", ["seedance_sdk", *MODULES])
def test_all_is_true(name: str) -> None:
    """Each module says what is public, once, and has it."""
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


def test_every_error_is_importable_from_the_package() -> None:
    """``except seedance_sdk.Overloaded`` needs no knowledge of modules."""
    kinds = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert kinds <= set(seedance_sdk.__all__)


def test_package_is_typed() -> None:
    """PEP 561: type checkers read the annotations."""
    assert (Path(seedance_sdk.__path__[0]) / "py.typed").exists()


TYPES = """
from typing import assert_type
from seedance_sdk import AsyncSeedanceClient, AsyncStream, Completion, SeedanceClient, Stream

client = SeedanceClient()
assert_type(client.chat(messages=[{"role": "user", "content": "x"}], temperature=0.3, stream=True), Stream)
assert_type(client.chat(messages=[{"role": "user", "content": "x"}], stop=["a"]), Completion)
assert_type(client.complete(prompt="x", logit_bias={1: -1.0}, stream=True), Stream)

def unknown(stream: bool) -> None:
    assert_type(client.complete(token_ids=[1], stream=stream), Completion | Stream)

async def main(native: AsyncSeedanceClient) -> None:
    stream = await native.chat(messages=[{"role": "user", "content": "x"}], stream=True)
    assert_type(stream, AsyncStream)
    async for chunk in stream:
        assert_type(chunk.delta, str)
    assert_type(await stream.collect(), Completion)

client.chat(messages=[{"role": "user", "content": "x"}], heat=1)  # type: ignore[call-overload]
client.chat(messages=[{"role": "user", "content": "x"}], top_k="many")  # type: ignore[call-overload]
"""


@pytest.mark.slow
def test_type_checkers_know_what_each_call_returns(tmp_path: Path) -> None:
    """``stream`` decides the type, and a misspelt parameter is found before the program runs."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(TYPES)
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}", "--config-file="]
    # A process of its own: mypy's memory would slow down every garbage collection of the later tests.
    command = [sys.executable, "-m", "mypy", *options, str(program)]
    homes = {str(Path(package.__path__[0]).parent) for package in (seedance_sdk, seedance_wire)}
    sources = {home for home in homes if "site-packages" not in home}  # an editable install hides from mypy
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "MYPYPATH": os.pathsep.join(sources)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
