"""The command ``seedance-server``: settings in, exit status out; ``keys`` and ``config`` are others.

0: served and stopped as asked. 2: couldn't start, one line on stderr says why. 3: the engine or its device
failed, start it again: what streams had is in the journal. 1: a bug, with its traceback.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence

import structlog
import trio

from seedance_server.config import Config
from seedance_server.config_command import run_config_command
from seedance_server.engine.collector import spare_what_is_loaded
from seedance_server.engine.errors import EngineError
from seedance_server.engine.progress import Progress
from seedance_server.errors import EngineStopped, StartupError
from seedance_server.given_settings import make_config, read_given
from seedance_server.key_command import run_key_command
from seedance_server.log import configure_logging, printable
from seedance_server.serve import serve
from seedance_server.served_model import ServedModel, load_served_model
from seedance_server.shutdown import ENGINE_FAILED_STATUS

__all__ = ["main"]

_log = structlog.get_logger(__name__)

_LINE_CHARS = 2_000
"""Longest error line: a path may be long, a line break in it must not make two lines."""


def _load_for_good(config: Config, progress: Progress) -> ServedModel:
    """Loads what stays until the process ends, so that the garbage collector needn't look at it again."""
    model = load_served_model(config, progress)
    spare_what_is_loaded()
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Returns:
        The exit status, where nothing was served; after that the process ends here.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given[:1] == ["keys"]:
            return run_key_command(given[1:])
        if given[:1] == ["config"]:
            return run_config_command(given[1:])
        were_set = read_given(given)
        config = make_config(were_set)
        configure_logging(config.log_level, config.log_format)
        for name in were_set.strangers:
            _log.warning("a variable that is no setting", name=name)
        trio.run(functools.partial(serve, config, _load_for_good))
        status = 0
    except (StartupError, EngineError) as error:
        _tell(error)
        return 2
    except EngineStopped as error:
        _tell(error)
        status = ENGINE_FAILED_STATUS
    # All is closed and said. Taking the interpreter down would free a model piece by piece, which takes
    # seconds, and can't be done at all beside native code that still loads or is stuck in a step.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _tell(error: Exception) -> None:
    sys.stderr.write(f"seedance-server: error: {printable(str(error), _LINE_CHARS)}\n")


if __name__ == "__main__":
    sys.exit(main())
