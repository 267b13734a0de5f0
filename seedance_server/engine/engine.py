"""Batched generation: many requests in, tokens out, one `step` at a time.

A step is schedule -> run -> sample -> postprocess. What a sequence gets follows from its logits, parameters
and seed; that its logits don't depend on its neighbours or on how its prompt was cut is up to the kernels, so
`Engine.prove_invariance` looks. The invariant: a failure of one sequence ends that sequence. It owns the
pool, the cache and all sequences, and knows nothing of clients, sockets or event loops. All methods but
`Engine.check` belong to one thread.
"""

import secrets
import time
from collections.abc import Callable

import torch

from seedance_server.engine.acceptance import Acceptance
from seedance_server.engine.batch import Batch
from seedance_server.engine.block_pool import BlockPool
from seedance_server.engine.config import EngineConfig
from seedance_server.engine.continuation import check_ids, take_up
from seedance_server.engine.device_errors import device_errors
from seedance_server.engine.engine_statistics import EngineStatistics
from seedance_server.engine.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    KvCapacityExceeded,
    OutOfDeviceMemory,
    RequestError,
)
from seedance_server.engine.generation import Generation
from seedance_server.engine.invariance import prove_invariance
from seedance_server.engine.memory import available_memory
from seedance_server.engine.model_loader import LoadedModel
from seedance_server.engine.model_runner import open_runner
from seedance_server.engine.pool_size import describe_pool, pool_blocks
from seedance_server.engine.prefill_budget import PrefillBudget
from seedance_server.engine.sampler import SampledTokens
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sampling_rows import sampling_rows
from seedance_server.engine.scheduler import Scheduler
from seedance_server.engine.sequence import (
    FinishReason,
    GenerationRequest,
    Sequence,
    SequenceOutput,
    SequenceStatus,
)
from seedance_server.engine.speculation import Speculation
from seedance_server.engine.step_limit import StepLimit
from seedance_server.engine.step_trial import measure_step_cost
from seedance_server.engine.streams import open_streams

__all__ = ["Engine"]

_LONGEST_REST_S = 0.25
"""Of a step in which all rest: commands, a cancel say, wait no longer for it than for a slow step. Picked."""


def _random_seed() -> int:
    return secrets.randbits(63)


class Engine:
    """One model with one KV pool.

    Args:
        model: What to run.
        config: Limits and sizes.
        clock: Seconds, monotonic; times the stages.
        entropy: Seeds for requests that name none.
        sleep: Waits so many seconds, on the thread that calls `step`.

    Attributes:
        context_length: Most tokens of prompt and answer together: the model's, the config's or the pool's
            limit, whichever is least. An answer that reaches it ends with LENGTH.

    Raises:
        InsufficientMemory: The KV pool doesn't fit.
        KvPoolTooSmall: The size that the config gives it holds no sequence.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[], int] = _random_seed,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model = model
        self._config = config
        self._clock = clock
        self._entropy = entropy
        self._sleep = sleep
        context = min(model.context_length, config.max_context or model.context_length)
        blocks = pool_blocks(model.geometry, config, context, available_memory(model.device))
        rings = model.geometry.rings(config.block_size, config.prefill_budget_tokens)
        windows = model.geometry.groups if config.prefix_reuse == "on" else ()
        self._pool = BlockPool(blocks, config.block_size, rings, windows)
        self._context = context  # as the model and the operator would have it
        self.context_length = min(context, self._pool.capacity_tokens)
        self._streams = open_streams(model.device, clock)
        with self._streams.compute():  # what they make is there before what a step does with it
            parts = model, config, self._streams
            self._runner = open_runner(*parts, blocks=self._pool.total, context=self.context_length)
            self._sampler = model.backend.open_sampler(model.vocab_size, self._streams)
        self._prefill_budget = PrefillBudget(
            config.prefill_budget_tokens,
            None if config.itl_budget_ms is None else config.itl_budget_ms / 1000,
        )
        self._limit = StepLimit(config.max_sequences, config.prefill_budget_tokens)
        self._scheduler = Scheduler(
            self._pool, max_sequences=config.max_sequences, prefill_budget=self._prefill_tokens
        )
        self._speculation = Speculation(min(config.speculative_tokens, config.prefill_budget_tokens - 1))
        self._generations: dict[int, Generation] = {}
        self._ended: list[SequenceOutput] = []  # ended between steps; the next step reports them
        self._arrivals = 0
        self._step_s = 0.0  # what the last one took
        self._acceptance = Acceptance(model.tokenizer.decode)
        self._prompt_rows = 0  # of the last step: those that the next one will presumably have
        self._steps = self._computed_tokens = 0

    def describe_pool(self) -> str:
        """Returns one line for whoever starts the server: how large the KV pool is, and what that allows."""
        return describe_pool(self._pool, self._model.geometry, self._context)

    def prove_invariance(self) -> str:
        """Look whether output depends on company; before the first request, on the thread that will step.

        Returns:
            One line for whoever starts the server.

        Raises:
            NotDeterministic: It does, and the config wants it not to.
        """
        with self._streams.compute():
            return prove_invariance(
                self._config.deterministic,
                self._runner,
                self._pool,
                vocab_size=self._model.vocab_size,
                longest_chunk=self._config.prefill_budget_tokens,
            )

    def record_graphs(self) -> str | None:
        """Record what steps can be, if the config wants it; like `prove_invariance`, and before it.

        Returns:
            One line for whoever starts the server; None where nothing was to be recorded.

        Raises:
            GraphsUnavailable: None can be, and the config wants it.
            OutOfDeviceMemory: There is no room for them.
        """
        if self._runner.graphs is None:
            return None
        with self._streams.compute():
            return self._runner.graphs.warm_up(must=self._config.cuda_graphs == "on")

    def measure_steps(self) -> str:
        """Learn what rows cost, for drafts; at the same time as `prove_invariance`, with a line as well."""
        parts, longest = (self._runner, self._sampler, self._pool), self._config.prefill_budget_tokens
        with self._streams.compute():
            cost = measure_step_cost(*parts, self._streams, longest_chunk=longest)
        self._speculation.cost = cost
        return f"a step of 8 rows takes {cost.of(8):.2f} times as long as one of a single row"

    def bind_thread(self) -> None:
        """Set torch's threads for the calling thread; call it once on the one that will call `step`."""
        if self._config.threads is not None:
            torch.set_num_threads(self._config.threads)

    @property
    def total_blocks(self) -> int:
        """Size of the KV pool; readable from any thread."""
        return self._pool.total

    def blocks_for(self, tokens: int) -> int:
        """Blocks of the pool that a sequence of so many tokens holds. Pure, and callable from any thread."""
        return self._pool.blocks_for(tokens)

    def check(self, prompt_tokens: int, params: SamplingParams) -> None:
        """Refuse what could never be served. Pure, and callable from any thread.

        Args:
            prompt_tokens: Length of the prompt.
            params: The request's parameters. ``max_tokens`` beyond what fits is fine: it is only a bound.

        Raises:
            ContextLengthExceeded: The prompt leaves no room in the context for a single token.
            KvCapacityExceeded: It would, but the whole pool can't hold it.
            InvalidParameter: An empty prompt, a token id that the model doesn't have, or a ``min_tokens``
                that can't be reached.
        """
        params.validate_for(self._model.vocab_size)
        if prompt_tokens < 1:
            raise InvalidParameter("prompt", "must have at least one token")
        if prompt_tokens >= self._context:
            raise ContextLengthExceeded(prompt_tokens, self._context - 1)
        if prompt_tokens >= self.context_length:
            raise KvCapacityExceeded(self._pool.blocks_for(prompt_tokens + 1), self._pool.total)
        room = self.context_length - prompt_tokens
        if params.min_tokens > room:
            raise InvalidParameter("min_tokens", f"must be at most {room} after this prompt")

    def add(self, request: GenerationRequest) -> None:
        """Queue a request. One that can't be served is answered by the next step with ERROR, like any other.

        To park a sequence, `cancel` it, drop the output that this makes, and add it again later with the
        tokens that it had. Tokens that end the answer already are answered by the next step, too.

        Args:
            request: Its id must differ from those of all sequences that haven't ended.

        Raises:
            ValueError: The id is in use: the caller's bug.
        """
        if request.id in self._generations:
            raise ValueError(f"sequence {request.id} hasn't ended yet")
        try:
            self.check(len(request.prompt_ids), request.params)
            check_ids(request, self._model.vocab_size)
            generation = self._make_generation(request)
            ended = take_up(generation)
        except RequestError as error:
            ended = SequenceOutput.refusing(request, error)
        if ended is not None:
            self._ended.append(ended)
            return
        self._generations[request.id] = generation
        self._scheduler.add(generation.sequence)

    def cancel(self, request_id: int) -> None:
        """End a sequence and free its blocks now; the next step reports it. An unknown id has just ended."""
        if generation := self._generations.get(request_id):
            self._ended.append(generation.abandon(FinishReason.CANCELLED))
            self._forget(generation)

    def pause(self, request_id: int) -> None:
        """Keep a sequence out of all steps until `resume`; its blocks stay unless others need them."""
        if generation := self._generations.get(request_id):
            generation.sequence.paused = True

    def resume(self, request_id: int) -> None:
        """Let a paused sequence go on, in its old place in the order of arrival."""
        if generation := self._generations.get(request_id):
            generation.sequence.paused = False

    def throttle(self, request_id: int, on: bool) -> None:
        """Let a sequence take part in every other step only, or in every one again."""
        if generation := self._generations.get(request_id):
            generation.sequence.throttled = on

    def has_work(self) -> bool:
        """Whether `step` has something to do or to report; paused sequences don't count."""
        return bool(self._ended) or self._scheduler.has_work()

    def step(self) -> list[SequenceOutput]:
        """One forward pass for all sequences that take part.

        Returns:
            What it brought, and what has ended since the step before. A sequence in its prompt brings
            nothing.

        Raises:
            OutOfDeviceMemory: The device has no memory for a single row.
            Exception: Anything else that the model or the device raises. Either way the engine's state is
                undefined: report the error to every sequence and make a new engine.
        """
        outputs, self._ended = self._ended, []
        self._speculation.propose(self._scheduler.running, self._prompt_rows)
        batch = self._scheduler.schedule()
        if batch.chunks:
            outputs += self._run_what_fits(batch)
        elif not outputs and self._scheduler.has_work():
            self._sleep(min(self._step_s, _LONGEST_REST_S))  # all are throttled: the step that they leave out
        return outputs

    def statistics(self) -> EngineStatistics:
        """Counts for metrics and tests."""
        sequences = [generation.sequence for generation in self._generations.values()]
        active = [sequence.status for sequence in sequences if not sequence.paused]
        return EngineStatistics(
            running=active.count(SequenceStatus.RUNNING),
            waiting=active.count(SequenceStatus.WAITING),
            paused=len(sequences) - len(active),
            total_blocks=self._pool.total,
            used_blocks=self._pool.used_blocks,
            idle_blocks=self._pool.idle_blocks,
            steps=self._steps,
            computed_tokens=self._computed_tokens,
            generated_tokens=self._acceptance.tokens,
            preemptions=self._scheduler.preemptions,
            queried_tokens=self._scheduler.queried_tokens,
            reused_tokens=self._scheduler.reused_tokens,
            drafted_tokens=self._speculation.drafted_tokens,
            accepted_tokens=self._speculation.accepted_tokens,
            recorded_steps=self._runner.recorded_steps,
            memory_failures=self._limit.failures,
        )

    def check_integrity(self) -> None:
        """Compare what the parts believe; for tests and idle moments.

        Raises:
            AssertionError: They disagree: our bug.
        """
        scheduled = self._scheduler.running + self._scheduler.waiting
        if {sequence.id for sequence in scheduled} != set(self._generations):
            raise AssertionError("scheduler and engine know different sequences")
        self._pool.check_integrity(sequence.table for sequence in scheduled)

    def _prefill_tokens(self, decodes: int, prompts: int) -> int:
        return min(self._limit.tokens, self._prefill_budget.tokens_beside(decodes, prompts))

    def _run_what_fits(self, batch: Batch) -> list[SequenceOutput]:
        """Run a batch, or half of it where the device has no memory for all, and so on."""
        while batch.chunks:
            try:
                return self._run(batch)
            except OutOfDeviceMemory:
                if not self._limit.halve(len(batch.chunks), batch.tokens):
                    raise
            self._scheduler.max_sequences = self._limit.rows
            for chunk in batch.chunks:
                chunk.sequence.draft = ()
            batch = self._scheduler.schedule()
        return []

    @torch.inference_mode()
    def _run(self, batch: Batch) -> list[SequenceOutput]:
        started = self._clock()
        self._pool.expire(started)
        for chunk in batch.chunks:
            self._generations[chunk.sequence.id].note_scheduled(started)
        with device_errors(), self._streams.compute():
            before = self._streams.mark()
            logits = self._runner.run(batch)
            after = self._streams.mark()
            rows = [
                row
                for chunk in batch.sampled
                for generation in (self._generations[chunk.sequence.id],)
                for row in sampling_rows(chunk, generation.banned_ids, generation.form)
            ]
            sampled = self._sampler.sample(logits, rows)
        forward_end = started + self._streams.seconds_between(before, after)
        self._scheduler.complete(batch)
        self._steps += 1
        self._computed_tokens += batch.tokens
        now = self._clock()
        self._step_s = now - started
        self._scheduler.max_sequences = self._limit.note_success()
        self._prompt_rows = batch.tokens - len(rows)
        self._prefill_budget.note(len(rows), self._prompt_rows, self._step_s)
        self._speculation.note(len(batch.sampled), len(rows), self._prompt_rows, self._step_s)
        return self._postprocess(batch, sampled, forward_end, now)

    def _postprocess(
        self, batch: Batch, sampled: SampledTokens, forward_end: float, now: float
    ) -> list[SequenceOutput]:
        outputs = []
        first_row = 0
        for chunk in batch.sampled:
            generation = self._generations[chunk.sequence.id]
            generation.note_sampled(forward_end, now)
            output = self._acceptance.accept(generation, chunk, sampled, first_row, self._speculation)
            first_row += chunk.sampled_rows
            outputs.append(output)
            if output.finish is not None:
                self._forget(generation)
        return outputs

    def _make_generation(self, request: GenerationRequest) -> Generation:
        params = request.params
        room = self.context_length - len(request.prompt_ids)
        # An answer begun under a longer context ends at once, but may keep all that it has.
        longest = max(min(room, params.max_tokens or room), len(request.generated_ids))
        sequence = Sequence(
            request,
            order=self._arrivals,
            seed=self._entropy() if params.seed is None else params.seed,
            limit=len(request.prompt_ids) + longest,
            table=self._pool.new_table(),
        )
        self._arrivals += 1
        form = self._model.constraints.make(params)
        return Generation(sequence, self._model.tokenizer, self._model.eos_token_ids, form)

    def _forget(self, generation: Generation) -> None:
        sequence = generation.sequence
        self._scheduler.record(sequence)
        if session := sequence.request.session:
            until_s = self._clock() + self._config.session_kv_ttl_s
            self._pool.keep((sequence.request.tenant, session), sequence.table, until_s)
        self._scheduler.remove(sequence)
        self._speculation.forget(generation.sequence)
        del self._generations[generation.sequence.id]
