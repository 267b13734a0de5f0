"""How a command of this folder ends: what is expected to fail is one line, and Ctrl-C is no failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from figures import first_error
from seedance_sdk import SeedanceError
from server_process import ServerFailed

__all__ = ["run_to_end"]

T = TypeVar("T")


def run_to_end(command: str, work: Callable[[], T]) -> tuple[T | None, int]:
    """Run ``work`` and say on stderr, under the command's name, what ended it early.

    Returns:
        What it returned, or None, and the exit status: 0; 1 where server or client failed; 130 if stopped.
    """
    result, status = None, 0
    try:
        result = work()
    except* (ServerFailed, SeedanceError) as failures:
        print(f"{command}: {first_error(failures)}", file=sys.stderr)
        status = 1
    except* KeyboardInterrupt:
        print(f"{command}: stopped", file=sys.stderr)
        status = 130
    return result, status
