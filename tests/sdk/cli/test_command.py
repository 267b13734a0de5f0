"""Tests of `seedance_sdk.cli.command`."""

import subprocess
import sys

import pytest

from seedance_sdk.testing import ErrorCode, Refusal, ScriptedServer
from tests.sdk.cli.terminal import Terminal


def test_importing_the_sdk_brings_nothing_of_the_command() -> None:
    """Whoever serves requests needs no terminal."""
    code = (
        "import sys, seedance_sdk, seedance_sdk.testing; print({'rich', 'prompt_toolkit'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("missing", ["rich", "prompt_toolkit"])
def test_command_says_what_to_install_when_its_extra_is_missing(missing: str) -> None:
    """The script is there without the extra too; a traceback would help nobody."""
    code = f"import sys; sys.modules['{missing}'] = None; from seedance_sdk.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "seedance: error: this needs more packages: pip install 'seedance-sdk[cli]'\n"


@pytest.mark.parametrize(
    "arguments",
    [(), ("sing",), ("complete", "--max-tokens", "x"), ("chat", "--nonsense"), ("latency", "--streams", "0")],
)
def test_command_lines_that_make_no_sense_are_refused_in_one_line(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and where to read more."""
    with pytest.raises(SystemExit) as left:
        Terminal().run(*arguments)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "(see --help)" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["chat", "complete", "latency", "doctor"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names the variables that say which server."""
    with pytest.raises(SystemExit) as left:
        Terminal().run(command, "--help")
    assert left.value.code == 0
    words = capsys.readouterr().out
    assert "SEEDANCE_URL" in words
    assert "SEEDANCE_API_KEY" in words


def test_a_wrong_url_is_a_wrong_command_line() -> None:
    """Nothing was tried."""
    terminal = Terminal()
    assert terminal.run("complete", "x", "--url", "http://x") == 2
    assert "ws://" in terminal.err


def test_a_refused_request_has_its_own_exit_code() -> None:
    """Scripts can tell it from a server that isn't there."""
    terminal = Terminal(ScriptedServer(Refusal(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too\x1b long")))
    assert terminal.run("complete", "x") == 1
    assert terminal.err == "seedance: error: too� long\n"


def test_a_server_that_lets_nobody_in_has_its_own_exit_code() -> None:
    """And the doctor is named."""
    terminal = Terminal(ScriptedServer(refuse_status=401))
    assert terminal.run("complete", "x") == 3
    assert "seedance doctor" in terminal.err
