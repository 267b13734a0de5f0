"""The ``seedance`` command in a real terminal, against a real server that is killed under it."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pexpect
import pytest

from scripted_server import numbers
from tests.faults.server_process import ServerProcess
from tests.numbers_process import numbers_process, start_again

pytestmark = pytest.mark.slow

_PROMPT = "\x1b[?2004h"
"""Pasting is announced by every prompt, and by nothing else."""
_ERASED = "\x1b[2K"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def spawn(server: ServerProcess, *arguments: str) -> pexpect.spawn[str]:
    """The command on a terminal of 80 columns."""
    environment = os.environ | {
        "SEEDANCE_URL": server.url,
        "XDG_STATE_HOME": str(server.directory),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "TERM": "xterm",
    }
    command = ["-m", "seedance_sdk.cli", *arguments]
    return pexpect.spawn(
        sys.executable, command, env=environment, encoding="utf-8", timeout=60, dimensions=(24, 80)
    )


def left_standing(output: str) -> str:
    """What stays of an answer once the lines that were only for the time being are erased."""
    return _ESCAPE.sub("", output.rpartition(_ERASED)[2])


def test_chat_survives_a_kill_and_says_so(tmp_path: Path) -> None:
    """The answer stands there whole, in order, each number once; and the next one is asked as ever."""
    with numbers_process(tmp_path, step_ms=20) as server:
        terminal = spawn(server, "chat", "--max-tokens", "120")
        terminal.expect_exact(_PROMPT)
        terminal.sendline("count")
        terminal.expect("tokens/s")
        server.destroy()  # SIGKILL
        terminal.expect("connection lost")
        start_again(server)
        terminal.expect("connected again after")
        terminal.expect_exact(_PROMPT)
        assert left_standing(terminal.before).split()[:120] == "".join(numbers(120)).split()
        assert "120 tokens" in terminal.before
        terminal.sendline("/set max_tokens=3")
        terminal.expect("max_tokens: 3")
        terminal.sendline("again")
        terminal.expect("3 tokens · first .* length")
        terminal.expect_exact(_PROMPT)  # before it Ctrl-D would be another thing
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0
        history = (tmp_path / "seedance" / "chat-history").read_text()
        assert "+count" in history


def test_ctrl_c_ends_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    """What came is said; the server is asked to stop, and the prompt is back."""
    with numbers_process(tmp_path, step_ms=20) as server:
        terminal = spawn(server, "chat")
        terminal.expect_exact(_PROMPT)
        terminal.sendline("count")
        terminal.expect("tokens/s")
        terminal.sendintr()
        terminal.expect("cancelled")
        terminal.expect_exact(_PROMPT)
        terminal.sendline("/quit")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0


def test_second_ctrl_c_does_not_wait_for_a_server_that_is_gone(tmp_path: Path) -> None:
    """Nobody has to wait for an answer that he has given up."""
    with numbers_process(tmp_path, step_ms=20) as server:
        terminal = spawn(server, "chat")
        terminal.expect_exact(_PROMPT)
        terminal.sendline("count")
        terminal.expect("tokens/s")
        server.destroy()
        terminal.expect("connection lost")
        terminal.sendintr()
        terminal.expect("stopping")
        terminal.sendintr()
        terminal.expect_exact(_PROMPT)
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0


def test_latency_is_drawn_while_it_is_measured(tmp_path: Path) -> None:
    """The histogram lives, and what stays at the end is the whole of it."""
    with numbers_process(tmp_path, step_ms=20) as server:
        terminal = spawn(server, "latency", "--requests", "6", "--max-tokens", "20")
        terminal.expect("[1-5] of 6 answers")
        terminal.expect("6 of 6 answers, 0 on their way")
        terminal.expect("120 tokens in")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0


def test_ctrl_c_ends_complete_with_its_own_exit_code(tmp_path: Path) -> None:
    """A shell's loop ends with it; the generation is cancelled on the server."""
    with numbers_process(tmp_path, step_ms=20) as server:
        terminal = spawn(server, "complete", "count")
        terminal.expect("0 1 2 3")
        terminal.kill(signal.SIGINT)
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 130


def test_doctor_examines_a_real_server(tmp_path: Path) -> None:
    """Every step, over a real connection."""
    with numbers_process(tmp_path, step_ms=1) as server:
        terminal = spawn(server, "doctor")
        terminal.expect(pexpect.EOF)
        terminal.close()
        lines = [line.split()[:2] for line in _ESCAPE.sub("", terminal.before).splitlines() if line.strip()]
    verdicts = {topic: verdict for verdict, topic in lines}
    assert set(verdicts.values()) == {"ok"}
    assert {
        "DNS",
        "TCP",
        "TLS",
        "readiness",
        "authentication",
        "versions",
        "round",
        "answer",
    } <= verdicts.keys()
