"""`seedance-server` with an engine that only counts: each answer is the numbers from 0 on, a piece a step.

Everything else is the real thing: the process, its sockets, its journal, its decode thread, which sleeps for
the time of a step as it would wait for an accelerator. What is measured with it is the server, whatever model
it may serve. `--step-ms` is its own flag, and `--fail-at-step`, at which the engine breaks like a device; all
others are those of `seedance-server`.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence

import trio

from seedance_server.config import Config
from seedance_server.engine.collector import spare_what_is_loaded
from seedance_server.engine.sequence import GenerationRequest, SequenceOutput
from seedance_server.errors import EngineStopped
from seedance_server.given_settings import read_config
from seedance_server.log import configure_logging
from seedance_server.serve import serve
from seedance_server.served_model import ServedModel
from seedance_server.shutdown import ENGINE_FAILED_STATUS
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

    def __init__(self, step_s: float, fail_at_step: int | None) -> None:
        super().__init__(_answer, context_tokens=CONTEXT_TOKENS, fail_at_step=fail_at_step)
        self._step_s = step_s

    def add(self, request: GenerationRequest) -> None:
        super().add(request)
        self.requests.clear()  # kept for tests; here they would pass for a leak of the server's

    def step(self) -> list[SequenceOutput]:
        time.sleep(self._step_s)
        return super().step()


def _model(
    step_s: float, fail_at_step: int | None, _config: Config, _report: Callable[[str], None]
) -> ServedModel:
    spare_what_is_loaded()
    return ServedModel(
        name="numbers",
        context_tokens=CONTEXT_TOKENS,
        vocab_size=0x110000,
        engine=_PacedEngine(step_s, fail_at_step),
        encoder=ScriptedEncoder(),
        fingerprint=bytes(32),
    )


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal, or until the engine breaks."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--fail-at-step", type=int)
    own, flags = parser.parse_known_args(arguments)
    config = read_config([*flags, "--model-path", "numbers"])
    configure_logging(config.log_level, config.log_format)
    model = functools.partial(_model, own.step_ms / 1e3, own.fail_at_step)
    try:
        trio.run(functools.partial(serve, config, model))
    except EngineStopped:
        sys.exit(ENGINE_FAILED_STATUS)


if __name__ == "__main__":
    main(sys.argv[1:])
