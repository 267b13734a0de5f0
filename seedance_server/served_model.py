"""What is served: an engine, an encoder for its prompts, and what clients may know of them.

The seam between the server and the engine. On this side the wire's vocabulary and no PyTorch; loading, the
only function that knows both sides, runs on the decode thread and imports the engine there, so that a wrong
flag or a taken port is reported before PyTorch's seconds of import.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from attrs import frozen

from seedance_server.config import Config
from seedance_server.engine.collector import paused_collector, spared_so_far
from seedance_server.engine.config import (
    DeterministicName,
    DtypeName,
    FormsName,
    GraphsName,
    KernelsName,
    QuantizeName,
    ReuseName,
)
from seedance_server.engine.errors import InvalidParameter
from seedance_server.engine.progress import Progress
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine_hop import GenerationEngine
from seedance_wire.messages import ChatMessage

if TYPE_CHECKING:
    from seedance_server.engine.chat_template import PromptEncoder as TemplateEncoder
    from seedance_server.engine.engine import Engine
    from seedance_server.engine.model_loader import LoadedModel

__all__ = ["Capacity", "PromptEncoder", "ServedModel", "load_served_model"]


class PromptEncoder(Protocol):
    """Turns what a client sends into token ids; called on worker threads, several at once."""

    def encode_chat(self, messages: Sequence[ChatMessage], *, parse_special: bool) -> Sequence[int]:
        """Applies the model's chat template; raises RequestError for what can't become a prompt."""

    def encode_turn(
        self, messages: Sequence[ChatMessage], preceding_ids: Sequence[int], *, parse_special: bool
    ) -> Sequence[int]:
        """The prompt of a conversation's next turn: its exact ids so far, then ``messages``."""

    def encode_text(self, prompt: str, *, parse_special: bool, is_start: bool = True) -> Sequence[int]:
        """Tokenises text as it is, as the start of a prompt or not; raises as `encode_chat`."""


def _one_for_each_token(tokens: int) -> int:
    return tokens


def _refuse_form(params: SamplingParams) -> None:
    if params.is_constrained:
        name = "regex" if params.json_schema is None else "json_schema"
        raise InvalidParameter(name, "isn't offered by this server")


@frozen(kw_only=True)
class Capacity:
    """What an engine has room for at once; by default for whatever is asked for.

    Attributes:
        sequences: Rows in its batch.
        blocks: Blocks in its KV pool.
        blocks_for: Blocks that a sequence of so many tokens holds.
    """

    sequences: int = 1 << 31
    blocks: int = 1 << 62
    blocks_for: Callable[[int], int] = _one_for_each_token


@frozen(kw_only=True)
class ServedModel:
    """A loaded model, ready to answer.

    Attributes:
        name: What clients may ask for.
        context_tokens: Longest prompt plus answer.
        vocab_size: Token ids go from 0 to one below it.
        engine: Generates.
        encoder: Encodes prompts.
        fingerprint: What its tokens depend on beside the request: weights, tokenizer, number type, engine.
        capacity: What the engine has room for.
        answer_ends: Stop strings that an answer in turns has whether its request names them or not.
        invariance: Whether output depends on what else runs, as far as was looked; one line.
        kernels: What computes it, and why; one line.
        check_form: Refuses parameters that give an answer a form which can't be kept; takes its time, so on a
            worker thread.
    """

    name: str
    context_tokens: int
    vocab_size: int
    engine: GenerationEngine
    encoder: PromptEncoder
    fingerprint: bytes
    capacity: Capacity = Capacity()
    answer_ends: tuple[str, ...] = ()
    invariance: str = ""
    kernels: str = ""
    check_form: Callable[[SamplingParams], None] = _refuse_form


class _ChatEncoder:
    """The engine's encoder, spoken to in the wire's messages."""

    def __init__(self, encoder: TemplateEncoder, turn: Callable[..., object]) -> None:
        self._encoder = encoder
        self._turn = turn

    def encode_chat(self, messages: Sequence[ChatMessage], *, parse_special: bool) -> Sequence[int]:
        turns = [self._turn(role=each.role, content=each.content, name=each.name) for each in messages]
        return self._encoder.encode_chat(turns, parse_special=parse_special)  # type: ignore[arg-type]

    def encode_turn(
        self, messages: Sequence[ChatMessage], preceding_ids: Sequence[int], *, parse_special: bool
    ) -> Sequence[int]:
        turns = [self._turn(role=each.role, content=each.content, name=each.name) for each in messages]
        return self._encoder.encode_turn(turns, preceding_ids, parse_special=parse_special)  # type: ignore[arg-type]

    def encode_text(self, prompt: str, *, parse_special: bool, is_start: bool = True) -> Sequence[int]:
        return self._encoder.encode_text(prompt, parse_special=parse_special, is_start=is_start)


def load_served_model(config: Config, progress: Progress) -> ServedModel:
    """Loads the model and builds its engine; call it on the decode thread.

    Args:
        config: All settings.
        progress: Told what is being done.

    Raises:
        EngineError: The model can't be loaded with these settings.
    """
    progress("starting PyTorch")
    # Read once, when PyTorch brings in its OpenMP. Its threads would otherwise spin while they wait for each
    # other, and whenever anything else wants their core, all of them wait for the one that lost it: measured
    # 2 to 4 times slower on a busy machine, see bench/README.md.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with paused_collector():
        from seedance_server.engine.chat_template import ChatTurn, PromptEncoder  # noqa: PLC0415
        from seedance_server.engine.engine import Engine  # noqa: F401, PLC0415 - among what "PyTorch" stands for
        from seedance_server.engine.model_loader import load_model  # noqa: PLC0415
        from seedance_server.engine.own_memory import return_memory  # noqa: PLC0415
    with spared_so_far():
        model = load_model(
            config.model_path,
            dtype=cast("DtypeName", config.dtype),
            kernels=cast("KernelsName", config.kernels),
            quantize=cast("QuantizeName", config.quantize),
            structured_output=cast("FormsName", config.structured_output),
            progress=progress,
        )
        # By the model's context: what the KV pool allows below that, the engine refuses with its own reason.
        longest = min(model.context_length, config.max_context_tokens or model.context_length)
        progress("reading its chat template and vocabulary")
        encoder = PromptEncoder(model.tokenizer, context_length=longest)
        engine, invariance = _start_engine(model, config, progress)
        return_memory()
    return ServedModel(
        name=config.served_model_name or model.name,
        context_tokens=engine.context_length,
        vocab_size=model.vocab_size,
        engine=engine,
        encoder=_ChatEncoder(encoder, ChatTurn),
        answer_ends=encoder.answer_ends,
        fingerprint=model.fingerprint,
        capacity=Capacity(
            sequences=config.max_sequences, blocks=engine.total_blocks, blocks_for=engine.blocks_for
        ),
        invariance=invariance,
        kernels=model.computing,
        check_form=model.constraints.check,
    )


def _start_engine(model: LoadedModel, config: Config, progress: Progress) -> tuple[Engine, str]:
    """The engine, with all that it looks at before it serves, and what it found of its invariance."""
    from seedance_server.engine.config import EngineConfig  # noqa: PLC0415
    from seedance_server.engine.engine import Engine  # noqa: PLC0415

    engine = Engine(
        model,
        EngineConfig(
            kv_memory_bytes=config.kv_memory_bytes,
            max_sequences=config.max_sequences,
            prefill_budget_tokens=config.prefill_budget_tokens,
            itl_budget_ms=config.itl_budget_ms,
            prefix_reuse=cast("ReuseName", config.prefix_reuse),
            session_kv_ttl_s=math.ceil(config.session_kv_ttl_s),
            max_context=config.max_context_tokens,
            deterministic=cast("DeterministicName", config.deterministic),
            speculative_tokens=config.speculative_tokens,
            cuda_graphs=cast("GraphsName", config.cuda_graphs),
            threads=config.threads,
        ),
    )
    progress(engine.describe_pool())
    engine.bind_thread()
    if graphs := engine.record_graphs():
        progress(graphs)
    progress("looking whether output depends on what else runs")
    invariance = engine.prove_invariance()
    progress(invariance)
    if config.speculative_tokens:
        progress(engine.measure_steps())
    return engine, invariance
