"""Our engine against others on the same machine: same prompts, same cores, in turns, in one run.

`nox -s bench -- engine` runs `command.main`. The peers live in environments of their own, outside this
repository; a peer that isn't there is named as absent, and nothing is said about it.
"""

from engine.command import main

__all__ = ["main"]
