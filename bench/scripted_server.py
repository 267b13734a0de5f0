"""`seedance-server` with an engine that only counts: each answer is the numbers from 0 on, a piece a step.

Everything else is the real thing: the process, its sockets, its journal, its decode thread, which sleeps for
the time of a step as it would wait for an accelerator. What is measured with it is the server, whatever model
it may serve. `--step-ms` is its own flag, all others are those of `seedance-server`.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence

import trio

from seedance_server.config import Config
from seedance_server.engine.sequence import GenerationRequest, SequenceOutput
from seedance_server.given_settings import read_config
from seedance_server.log import configure_logging
from seedance_server.serve import serve
from seedance_server.served_model import ServedModel
from seedance_server.testing import ScriptedEncoder, ScriptedEngine

__all__ = ["main", "numbers"]

CONTEXT_TOKENS = 4096


def numbers(count: int) -> list[str]:
    """The first pieces of every answer: "0 ", "1 " and so on."""
    return [f"{number} " for number in range(count)]


def _answer(request: GenerationRequest) -> list[str]:
    return numbers(request.params.max_tokens or CONTEXT_TOKENS)


class _PacedEngine(ScriptedEngine):
    """Takes its time for a step, and lets other threads run meanwhile."""

    def __init__(self, step_s: float) -> None:
        super().__init__(_answer, context_tokens=CONTEXT_TOKENS)
        self._step_s = step_s

    def add(self, request: GenerationRequest) -> None:
        super().add(request)
        self.requests.clear()  # kept for tests; here they would pass for a leak of the server's

    def step(self) -> list[SequenceOutput]:
        time.sleep(self._step_s)
        return super().step()


def _model(step_s: float, _config: Config, _report: Callable[[str], None]) -> ServedModel:
    return ServedModel(
        name="numbers",
        context_tokens=CONTEXT_TOKENS,
        vocab_size=0x110000,
        engine=_PacedEngine(step_s),
        encoder=ScriptedEncoder(),
        fingerprint=bytes(32),
    )


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal."""
    step_ms = next(float(each.partition("=")[2]) for each in arguments if each.startswith("--step-ms="))
    flags = [each for each in arguments if not each.startswith("--step-ms=")]
    config = read_config([*flags, "--model-path", "numbers"])
    configure_logging(config.log_level, config.log_format)
    trio.run(functools.partial(serve, config, functools.partial(_model, step_ms / 1e3)))


if __name__ == "__main__":
    main(sys.argv[1:])
