"""The ``seedance`` command: talk to a server from a terminal, measure it, find out what is wrong with it.

Needs the extra ``cli``. The rest of the package never imports it, nor the libraries that it is made of.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command; returns its exit code, or 2 and says what to install where the extra is missing."""
    try:
        from seedance_sdk.cli import command  # noqa: PLC0415 - what it needs may not be there
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"prompt_toolkit", "rich"}:
            raise
        sys.stderr.write("seedance: error: this needs more packages: pip install 'seedance-sdk[cli]'\n")
        return 2
    return command.main()
