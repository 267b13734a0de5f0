"""Keep a server up to play with: `nox -s serve`, with the demo model unless `--model-path` names another.

Everything after `--` is given to `seedance-server` as it is. Ctrl-C stops it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from server_process import ServerFailed, demo_model, running_server, stop_like_ctrl_c_on_sigterm

__all__ = ["main"]

SNIPPET = """
{url} is up. In another terminal, from this directory:

    .nox/dev/bin/python - <<'END'
    from seedance_sdk import SeedanceClient

    client = SeedanceClient("{url}")
    stream = client.complete(prompt="Once upon a time", max_tokens=100, repetition_penalty=1.1, stream=True)
    for chunk in stream:
        print(chunk.delta, end="", flush=True)
    print()
    END

Ctrl-C stops it.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the server until Ctrl-C; 0 if it stopped cleanly."""
    asked = list(arguments)
    try:
        if not any(argument.split("=")[0] == "--model-path" for argument in asked):
            asked += ["--model-path", demo_model()]
        with running_server(asked, report, keep_reporting=True) as server:
            report(SNIPPET.format(url=server.url))
            try:
                # Whichever comes first: Ctrl-C here, or the end of the server for a reason of its own.
                report(f"serve: the server ended by itself with status {server.process.wait()}")
            except KeyboardInterrupt:
                return 0
            return 1
    except ServerFailed as error:
        report(f"serve: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


def report(line: str) -> None:
    """Print one line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    stop_like_ctrl_c_on_sigterm()
    sys.exit(main(sys.argv[1:]))
