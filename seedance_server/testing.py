"""Public test doubles: an engine that says what it is told, and a whole server without sockets or PyTorch.

    async with serve_in_memory(ScriptedEngine(["Hel", "lo"])) as server:
        stream = server.connect()   # a trio stream that speaks HTTP and WebSocket, as a TCP connection would

All runs on trio's clock and without threads, so under an autojump clock time costs nothing. Scripted text is
counted as one token a piece.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import trio
import trio.testing
from attrs import define, field

from seedance_server.admission import Admission
from seedance_server.config import Config
from seedance_server.engine.engine_statistics import EngineStatistics
from seedance_server.engine.errors import (
    ContextLengthExceeded,
    ContinuationMismatch,
    EngineError,
    InvalidParameter,
)
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import (
    Finish,
    FinishReason,
    GenerationRequest,
    SequenceOutput,
    StageTiming,
    Usage,
)
from seedance_server.engine_hop import GenerationEngine
from seedance_server.engine_loop import EngineLoop
from seedance_server.event_delivery import EventDelivery
from seedance_server.event_sink import EventSink
from seedance_server.front_door import FrontDoor, Service
from seedance_server.gate import Gate
from seedance_server.inline_executor import InlineExecutor
from seedance_server.journal.interface import Journal
from seedance_server.journal.memory import MemoryJournal
from seedance_server.journal_file import journal_limits
from seedance_server.requests import Requests
from seedance_server.served_model import PromptEncoder, ServedModel
from seedance_server.session_registry import SessionRegistry
from seedance_server.tracing import Traces
from seedance_server.watchdog import Watchdog
from seedance_wire.messages import ChatMessage

__all__ = ["InMemoryServer", "InlineExecutor", "ScriptedEncoder", "ScriptedEngine", "serve_in_memory"]

Script: TypeAlias = Sequence[str] | Callable[[GenerationRequest], Sequence[str]]


@define
class _Sequence:
    request: GenerationRequest
    pieces: Sequence[str]
    sent: int = 0
    paused: bool = False
    throttled: bool = False
    rested: bool = True
    cancelled: bool = False
    error: EngineError | None = None


class ScriptedEngine:
    """Answers each request with chosen pieces of text, one a step; an interrupted one with the rest.

    Args:
        script: The pieces for every request, or a function from the request to its pieces.
        context_tokens: `check` refuses longer prompts.
        errors: Instead of piece number ``key`` (from 0) of any request, end it with this error.
        fail_at_step: Raise at this step, from 1, as an engine with a bug would.

    Attributes:
        steps: Steps taken.
        integrity_checks: How often it was idle long enough to be asked to check its books.
        requests: Every request added, in order.
        active: Ids that haven't ended.
        computed_tokens: Pieces made; a test may count more.
        generated_tokens: Pieces made.
    """

    def __init__(
        self,
        script: Script = ("Hello", ", ", "world", "!"),
        *,
        context_tokens: int = 4096,
        errors: Mapping[int, EngineError] | None = None,
        fail_at_step: int | None = None,
    ) -> None:
        self._script = script
        self._context_tokens = context_tokens
        self._errors = dict(errors or {})
        self._fail_at_step = fail_at_step
        self._sequences: dict[int, _Sequence] = {}
        self.steps = 0
        self.integrity_checks = 0
        self.computed_tokens = 0
        self.generated_tokens = 0
        self.requests: list[GenerationRequest] = []

    @property
    def active(self) -> tuple[int, ...]:
        """Ids of requests that haven't ended."""
        return tuple(self._sequences)

    @property
    def paused(self) -> tuple[int, ...]:
        """Ids of requests that are paused."""
        return tuple(id_ for id_, sequence in self._sequences.items() if sequence.paused)

    def check(self, prompt_tokens: int, params: SamplingParams) -> None:  # noqa: ARG002
        """Refuses prompts that fill the context."""
        if prompt_tokens >= self._context_tokens:
            raise ContextLengthExceeded(prompt_tokens, self._context_tokens - 1)

    def add(self, request: GenerationRequest) -> None:
        """Takes a request."""
        self.requests.append(request)
        pieces = self._script(request) if callable(self._script) else self._script
        sent = len(request.generated_ids)
        error: EngineError | None = None
        if request.delivered_text not in (None, "".join(pieces[:sent])):
            error = ContinuationMismatch("its tokens give another text")
        self._sequences[request.id] = _Sequence(request, pieces, sent=sent, error=error)

    def cancel(self, request_id: int) -> None:
        """Ends a request with the next step."""
        if request_id in self._sequences:
            self._sequences[request_id].cancelled = True

    def pause(self, request_id: int) -> None:
        """Leaves a request out."""
        if request_id in self._sequences:
            self._sequences[request_id].paused = True

    def resume(self, request_id: int) -> None:
        """Takes a request back in."""
        if request_id in self._sequences:
            self._sequences[request_id].paused = False

    def throttle(self, request_id: int, on: bool) -> None:
        """Leaves a request out of every other step, or of none."""
        if request_id in self._sequences:
            self._sequences[request_id].throttled = on

    def statistics(self) -> EngineStatistics:
        """A script has no KV pool: its sequences, steps and pieces."""
        return EngineStatistics(
            running=len(self._sequences) - len(self.paused),
            waiting=0,
            paused=len(self.paused),
            total_blocks=0,
            used_blocks=0,
            idle_blocks=0,
            steps=self.steps,
            computed_tokens=self.computed_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=0,
            queried_tokens=0,
            reused_tokens=0,
            drafted_tokens=0,
            accepted_tokens=0,
            recorded_steps=0,
            memory_failures=0,
        )

    def check_integrity(self) -> None:
        """Counts that it was called; a script keeps no books."""
        self.integrity_checks += 1

    def has_work(self) -> bool:
        """Whether any request isn't paused."""
        return any(sequence.cancelled or not sequence.paused for sequence in self._sequences.values())

    def step(self) -> list[SequenceOutput]:
        """One piece for each request that isn't paused, nor throttled and served by the step before.

        Raises:
            RuntimeError: At the step chosen for it.
        """
        self.steps += 1
        if self.steps == self._fail_at_step:
            raise RuntimeError("scripted failure")
        outputs = []
        for id_, sequence in tuple(self._sequences.items()):
            sequence.rested = not sequence.rested or not sequence.throttled
            if sequence.cancelled or (sequence.rested and not sequence.paused):
                output = self._advance(sequence)
                outputs.append(output)
                if output.finish is not None:
                    del self._sequences[id_]
        return outputs

    def _advance(self, sequence: _Sequence) -> SequenceOutput:
        request = sequence.request
        if sequence.cancelled:
            return SequenceOutput(id=request.id, finish=self._finish(sequence, FinishReason.CANCELLED))
        if (error := sequence.error or self._errors.get(sequence.sent)) is not None:
            return SequenceOutput(id=request.id, finish=self._finish(sequence, FinishReason.ERROR, error))
        if sequence.sent == len(sequence.pieces):
            return SequenceOutput(id=request.id, finish=self._finish(sequence, FinishReason.STOP))
        text = sequence.pieces[sequence.sent]
        timing = None if sequence.sent else StageTiming(preprocess_s=request.preprocess_s)
        sequence.sent += 1
        self.computed_tokens += 1
        self.generated_tokens += 1
        finish = None
        if request.params.max_tokens is not None and sequence.sent >= request.params.max_tokens:
            finish = self._finish(sequence, FinishReason.LENGTH)
        return SequenceOutput(
            id=request.id, text=text, token_ids=(sequence.sent,), timing=timing, finish=finish
        )

    def _finish(self, sequence: _Sequence, reason: FinishReason, error: EngineError | None = None) -> Finish:
        return Finish(
            reason=reason,
            usage=Usage(len(sequence.request.prompt_ids), sequence.sent),
            timing=StageTiming(preprocess_s=sequence.request.preprocess_s),
            error=error,
        )


class ScriptedEncoder:
    """Encodes text as its code points: one character, one token."""

    def encode_chat(self, messages: Sequence[ChatMessage], *, parse_special: bool = False) -> Sequence[int]:
        """All contents, joined."""
        text = "\n".join(turn.content or "" for turn in messages)
        if not text.strip():
            raise InvalidParameter("messages", "must hold some text")
        return self.encode_text(text, parse_special=parse_special)

    def encode_turn(
        self, messages: Sequence[ChatMessage], preceding_ids: Sequence[int], *, parse_special: bool = False
    ) -> Sequence[int]:
        """What came before, and the contents."""
        return [*preceding_ids, *self.encode_chat(messages, parse_special=parse_special)]

    def encode_text(
        self,
        prompt: str,
        *,
        parse_special: bool = False,  # noqa: ARG002
        is_start: bool = True,  # noqa: ARG002
    ) -> Sequence[int]:
        """The code points."""
        if not prompt.strip():
            raise InvalidParameter("prompt", "must hold some text")
        return [ord(char) for char in prompt]


@define
class InMemoryServer:
    """A server whose connections are pairs of memory streams.

    Attributes:
        door: The real front door.
        engine_loop: The real loop.
        admission: The real admission.
        registry: The real registry.
        journal: Where everything is kept.
        gate: The real gate.
    """

    door: FrontDoor
    engine_loop: EngineLoop
    admission: Admission
    registry: SessionRegistry
    journal: Journal
    gate: Gate
    _nursery: trio.Nursery = field(repr=False)

    def connect(self, address: str = "127.0.0.1") -> trio.StapledStream[Any, Any]:
        """Opens a connection as if from ``address``; returns the client's end."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.door.serve_stream, theirs, self.door.lobby.enter(address), address)
        return ours

    def connect_lockstep(self, address: str = "127.0.0.1") -> trio.StapledStream[Any, Any]:
        """The same without any buffer: a client that doesn't read makes the server's send wait."""
        ours, theirs = trio.testing.lockstep_stream_pair()
        self._nursery.start_soon(self.door.serve_stream, theirs, self.door.lobby.enter(address), address)
        return ours


@asynccontextmanager
async def serve_in_memory(
    engine: GenerationEngine | None = None,
    *,
    encoder: PromptEncoder | None = None,
    config: Config | None = None,
    step_s: float = 0.01,
    model_name: str = "scripted",
    journal: Journal | None = None,
    fingerprint: bytes = bytes(32),
    model: ServedModel | None = None,
    event_sinks: Sequence[EventSink] = (),
    traces: Traces | None = None,
) -> AsyncIterator[InMemoryServer]:
    """Runs a whole server in memory; leaving the block ends it, as a kill would.

    Args:
        engine: Default: a `ScriptedEngine` with its default script.
        encoder: Default: a `ScriptedEncoder`.
        config: Default: all defaults.
        step_s: What a step takes on trio's clock.
        model_name: Name of the model.
        journal: Default: a `MemoryJournal`. One that served before brings its sessions along.
        fingerprint: Of the model.
        model: A whole model, as `load_served_model` gives, instead of ``engine``, ``encoder``, name and
            fingerprint.
        event_sinks: Where reported events go; none: they are refused.
        traces: Where spans go; None for nowhere.
    """
    config = config or Config(model_path="scripted")
    model = model or ServedModel(
        name=model_name,
        context_tokens=4096,
        vocab_size=0x110000,
        engine=engine or ScriptedEngine(),
        encoder=encoder or ScriptedEncoder(),
        fingerprint=fingerprint,
    )
    gate = Gate(api_key=config.api_key, path=config.keys_path)
    journal = journal or MemoryJournal(journal_limits(config, gate.accounts.journal_bytes))
    async with trio.open_nursery() as keeping, trio.open_nursery() as nursery:
        await keeping.start(journal.run)
        engine_loop = EngineLoop(
            model.engine,
            InlineExecutor(step_s),
            buffer_outputs=config.stream_buffer_outputs,
            stall_timeout_s=config.stall_timeout_s,
            idle_check_s=config.idle_check_s,
        )

        async def encode_here(encode: Callable[[], Sequence[int]]) -> Sequence[int]:
            await trio.lowlevel.checkpoint()
            return encode()

        admission = Admission(
            model,
            engine_loop,
            accounts=gate.accounts,
            max_generations=config.max_generations,
            max_waiting=config.max_waiting,
            max_waiting_per_tenant=config.max_waiting_per_tenant,
            preprocess_workers=config.preprocess_workers,
            clock=trio.current_time,
            run_in_thread=encode_here,
        )
        delivery = EventDelivery(journal, event_sinks)
        nursery.start_soon(delivery.run)
        registry = SessionRegistry(
            journal,
            new_session_id=lambda: f"session-{secrets.token_hex(4)}",
            on_events=delivery.notify if delivery.has_sinks else None,
        )
        await nursery.start(registry.run)
        door = FrontDoor(config, gate, traces=traces)
        watchdog = Watchdog(engine_loop, journal, stall_timeout_s=config.stall_timeout_s)
        nursery.start_soon(watchdog.run)
        door.open(
            Service(
                admission=admission,
                engine_loop=engine_loop,
                journal=journal,
                requests=Requests(journal, admission, config, observers=door.observers),
                registry=registry,
                watchdog=watchdog,
            )
        )

        async def run_engine() -> None:
            await engine_loop.run()  # until it fails
            await door.break_off()

        nursery.start_soon(run_engine)
        nursery.start_soon(gate.run)
        nursery.start_soon(door.heartbeats.run)
        try:
            yield InMemoryServer(door, engine_loop, admission, registry, journal, gate, nursery)
        finally:
            nursery.cancel_scope.cancel()
            keeping.cancel_scope.cancel()
