"""The command ``seedance-server``: settings in, exit status out.

0: served and stopped as asked. 2: couldn't start, for a reason that one line on stderr gives. 1: a bug, with
its traceback.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import cast

import trio

from seedance_server.admission import ServedModel
from seedance_server.config import Config
from seedance_server.engine.config import DtypeName
from seedance_server.engine.errors import EngineError
from seedance_server.errors import StartupError
from seedance_server.flags import read_config
from seedance_server.log import configure_logging, printable
from seedance_server.serve import serve

__all__ = ["load_engine", "main"]

_LINE_CHARS = 2_000
"""Longest error line: a path may be long, a line break in it must not make two lines."""


def load_engine(config: Config, progress: Callable[[str], None]) -> ServedModel:
    """Loads the model and builds its engine; runs on the decode thread, which imports PyTorch.

    Args:
        config: All settings.
        progress: Told what is being done, a line each.

    Raises:
        EngineError: The model can't be loaded with these settings.
    """
    # Here, so that a wrong flag or a taken port is reported before PyTorch's seconds of import.
    from seedance_server.engine.chat_template import PromptEncoder  # noqa: PLC0415
    from seedance_server.engine.config import EngineConfig  # noqa: PLC0415
    from seedance_server.engine.engine import Engine  # noqa: PLC0415
    from seedance_server.engine.model_loader import load_model  # noqa: PLC0415

    model = load_model(config.model_path, dtype=cast("DtypeName", config.dtype), progress=progress)
    engine = Engine(
        model,
        EngineConfig(
            kv_memory_bytes=config.kv_memory_bytes,
            max_sequences=config.max_sequences,
            prefill_budget_tokens=config.prefill_budget_tokens,
            max_context=config.max_context_tokens,
            threads=config.threads,
        ),
    )
    engine.bind_thread()
    # By the model's context: what the KV pool allows below that, the engine refuses with its own reason.
    longest = min(model.context_length, config.max_context_tokens or model.context_length)
    encoder = PromptEncoder(model.tokenizer, context_length=longest)
    return ServedModel(
        name=config.served_model_name or model.name,
        context_tokens=engine.context_length,
        vocab_size=model.vocab_size,
        engine=engine,
        encoder=encoder,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server.

    Args:
        arguments: The command line without the program's name; None for the process's own.

    Returns:
        The exit status.
    """
    try:
        config = read_config(arguments)
        configure_logging(config.log_level, config.log_format)
        trio.run(functools.partial(serve, config, load_engine))
    except (StartupError, EngineError) as error:
        sys.stderr.write(f"seedance-server: error: {printable(str(error), _LINE_CHARS)}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
