"""The server of `server.py`: seedance-server with an engine that answers a prompt with its own pieces.

Everything else is the real thing: its port, its journal, its decode thread. `--fault` is its own flag.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from conformance.subjects.server_faults import SERVER_FAULTS
from seedance_server.config import Config
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.given_settings import read_config
from seedance_server.log import configure_logging
from seedance_server.serve import serve
from seedance_server.served_model import ServedModel
from seedance_server.testing import ScriptedEncoder, ScriptedEngine

__all__ = ["main"]


def _pieces(request: GenerationRequest) -> list[str]:
    return "".join(map(chr, request.prompt_ids)).split("|")


def _model(_config: Config, _report: Callable[[str], None]) -> ServedModel:
    return ServedModel(
        name="conformance",
        context_tokens=4096,
        vocab_size=0x110000,
        engine=ScriptedEngine(_pieces),
        encoder=ScriptedEncoder(),
        fingerprint=bytes(32),
    )


def main(arguments: Sequence[str]) -> None:
    """Serves until a signal."""
    for each in arguments:
        if each.startswith("--fault="):
            SERVER_FAULTS[each.partition("=")[2]]()
    flags = [each for each in arguments if not each.startswith("--fault=")]
    config = read_config([*flags, "--model-path", "conformance", "--log-level", "error"])
    configure_logging(config.log_level, config.log_format)  # to standard error: nobody reads the other
    trio.run(functools.partial(serve, config, _model))


if __name__ == "__main__":
    main(sys.argv[1:])
