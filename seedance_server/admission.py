"""Accept or refuse: from a SUBMIT to ids that can be generated from, or to a typed refusal.

A request passes the cheap limits first, then its prompt is encoded on a worker thread (the event loop never
tokenises), then the engine says whether it could ever run. What passed is complete and exact: it can be
written down and generated from, now or after a restart. Whatever goes wrong in here belongs to this one
request: its neighbours and its connection don't notice. What a refusal says is fit for the client, and a bug
is only ever called `internal`.

It must not know sockets, peers or frames.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import structlog
import trio
from attrs import field, frozen

from seedance_server.accounts import Accounts
from seedance_server.engine.errors import (
    ContextLengthExceeded,
    ContinuationMismatch,
    EngineError,
    InvalidParameter,
    KvCapacityExceeded,
    NumericalError,
    TemplateError,
)
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.engine_loop import EngineLoop, Generation
from seedance_server.errors import EngineStopped, RequestRefused
from seedance_server.served_model import PromptEncoder, ServedModel
from seedance_wire.messages import ErrorCode, Sampling, Submit

__all__ = ["Admission", "Prepared", "describe_failure", "sampling_params"]

_log = structlog.get_logger(__name__)

RETRY_SOON_MS = 1_000
"""What a refused client is told to wait: about one answer's length, picked, not measured."""


_REQUEST_FAULTS: Mapping[type[EngineError], ErrorCode] = {
    InvalidParameter: ErrorCode.INVALID_REQUEST,
    ContextLengthExceeded: ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    KvCapacityExceeded: ErrorCode.CAPACITY_EXCEEDED,
    TemplateError: ErrorCode.TEMPLATE_ERROR,
    NumericalError: ErrorCode.NUMERICAL_ERROR,
    ContinuationMismatch: ErrorCode.FINGERPRINT_MISMATCH,
}
"""Errors whose text is about the request, so that the client may read it."""


_UNSAID_TOKENS = 512
"""Reserved for an answer whose ``max_tokens`` isn't said: more than most have, picked. A longer one is
charged when it ends."""


def _random_seed() -> int:
    return secrets.randbits(63)


@frozen(kw_only=True)
class Prepared:
    """A request that may run: all that its tokens depend on but the model.

    Attributes:
        prompt_ids: What the model is given.
        params: How to sample; the seed is chosen.
        arrival_s: When it came, on the engine's clock.
        preprocess_s: Seconds that its encoding took.
        reserve_tokens: What it counts in its tenant's quota until it is known what it used.
    """

    prompt_ids: tuple[int, ...] = field(repr=False)
    params: SamplingParams
    arrival_s: float
    preprocess_s: float = 0.0
    reserve_tokens: int = 0

    @property
    def seed(self) -> int:
        """Decides, with the position, every random choice."""
        assert self.params.seed is not None  # noqa: S101 - chosen when it was prepared
        return self.params.seed


RunInThread = Callable[[Callable[[], Sequence[int]]], Awaitable[Sequence[int]]]


class Admission:
    """Decides on requests of all connections.

    Args:
        model: What is served.
        engine_loop: Where accepted requests go.
        accounts: What each tenant uses.
        max_generations: Requests at once, from SUBMIT to the last frame.
        preprocess_workers: Prompts encoded at once.
        clock: Seconds of the engine's clock.
        run_in_thread: Runs a prompt's encoding off the event loop; None for trio's worker threads.
        entropy: Seeds for requests that name none, from 0 to 2**63 - 1.
    """

    def __init__(
        self,
        model: ServedModel,
        engine_loop: EngineLoop,
        *,
        accounts: Accounts,
        max_generations: int,
        preprocess_workers: int,
        clock: Callable[[], float] = time.monotonic,
        run_in_thread: RunInThread | None = None,
        entropy: Callable[[], int] = _random_seed,
    ) -> None:
        self.model = model
        self._engine_loop = engine_loop
        self._accounts = accounts
        self._max_generations = max_generations
        self._clock = clock
        self._entropy = entropy
        self._limiter = trio.CapacityLimiter(preprocess_workers)
        self._run_in_thread = run_in_thread or self._run_on_worker
        self._open = 0
        self._draining = False

    @property
    def open_requests(self) -> int:
        """Requests between SUBMIT and their last frame."""
        return self._open

    def drain(self) -> None:
        """From now on refuses everything with DRAINING; what runs goes on."""
        self._draining = True

    def enter(self, tenant: str) -> None:
        """Counts a tenant's request in, before anything is done for it; pair with `leave`.

        Raises:
            RequestRefused: DRAINING, ENGINE_FAILED, OVERLOADED or RATE_LIMITED (the tenant's own limit), all
                worth a retry elsewhere or later.
        """
        account = self._accounts.of(tenant)
        if self._draining:
            raise RequestRefused(
                ErrorCode.DRAINING, "the server is shutting down: go elsewhere", retry_after_ms=RETRY_SOON_MS
            )
        if self._engine_loop.failure is not None:
            raise _engine_failed()
        if self._open >= self._max_generations:
            raise RequestRefused(
                ErrorCode.OVERLOADED, "too many requests at once: try again", retry_after_ms=RETRY_SOON_MS
            )
        if not account.has_room_for_request:
            raise RequestRefused(
                ErrorCode.RATE_LIMITED,
                f"at most {account.tenant.max_streams} requests of this tenant at once",
                retry_after_ms=RETRY_SOON_MS,
            )
        self.enter_again(tenant)

    def enter_again(self, tenant: str) -> None:
        """Counts in a stream that was accepted before, limit or not: its client was promised the rest."""
        self._open += 1
        self._accounts.of(tenant).requests += 1

    def leave(self, tenant: str) -> None:
        """Counts a request out."""
        self._open -= 1
        self._accounts.of(tenant).requests -= 1

    async def prepare(self, submit: Submit, preceding_ids: Sequence[int] | None = None) -> Prepared:
        """Encodes and checks a request.

        Args:
            submit: The request.
            preceding_ids: The exact ids of the conversation so far, where the request goes on from one.

        Raises:
            RequestRefused: With everything that the client should know.

        If cancelled, waiting for a worker ends at once; a begun encoding ends first.
        """
        try:
            return await self._prepare(submit, preceding_ids)
        except RequestRefused:
            raise
        except (EngineError, EngineStopped) as error:
            raise _refusal(error) from error
        except Exception as error:
            _log.exception("request failed in preprocessing", sequence_id=submit.sequence_id)
            raise RequestRefused(ErrorCode.INTERNAL, "a bug in the server, see its log") from error

    async def _prepare(self, submit: Submit, preceding_ids: Sequence[int] | None) -> Prepared:
        arrival_s = self._clock()
        if submit.model is not None and submit.model != self.model.name:
            raise RequestRefused(
                ErrorCode.MODEL_NOT_FOUND, f"this server serves {self.model.name}", field="model"
            )
        params = sampling_params(submit.sampling)
        params.validate_for(self.model.vocab_size)
        _check_ids(submit.token_ids, self.model.vocab_size)
        began_s = self._clock()

        def encode() -> Sequence[int]:
            nonlocal began_s
            began_s = self._clock()
            if preceding_ids is not None:
                return _encode_after(self.model.encoder, submit, preceding_ids)
            return _encode(self.model.encoder, submit)

        prompt_ids = tuple(await self._run_in_thread(encode))
        encoded_s = self._clock()
        if not prompt_ids:
            raise InvalidParameter(_input_field(submit), "must hold at least one token")
        self.model.engine.check(len(prompt_ids), params)
        if params.seed is None:
            params = attrs.evolve(params, seed=self._entropy())
        longest = self.model.context_tokens - len(prompt_ids)
        return Prepared(
            prompt_ids=prompt_ids,
            params=params,
            arrival_s=arrival_s,
            preprocess_s=encoded_s - began_s,
            reserve_tokens=len(prompt_ids) + min(params.max_tokens or _UNSAID_TOKENS, longest),
        )

    def reserve(self, tenant: str, prepared: Prepared) -> None:
        """Takes a request's tokens from its tenant's quota; pair with `settle`.

        Raises:
            RequestRefused: RATE_LIMITED, with when there will be so many.
        """
        wait_s = self._accounts.of(tenant).take_tokens(prepared.reserve_tokens)
        if wait_s > 0:
            raise RequestRefused(
                ErrorCode.RATE_LIMITED,
                "the tokens of this tenant are used up for now",
                retry_after_ms=math.ceil(wait_s * 1e3),
            )

    def settle(self, tenant: str, reserved: int, used: int) -> None:
        """Counts what a request used, in place of what was reserved for it."""
        self._accounts.of(tenant).settle_tokens(reserved, used)

    def start(
        self, prepared: Prepared, generated_ids: Sequence[int] = (), delivered_text: str | None = None
    ) -> Generation:
        """Queues a request in the engine; its first output comes after this returns.

        Args:
            prepared: What to generate from.
            generated_ids: Tokens that it got before; the generation goes on behind them.
            delivered_text: What was made of them, for the engine to compare; None to trust them.

        Raises:
            EngineStopped: The engine takes no more work.
        """
        return self._engine_loop.submit(
            lambda id_: GenerationRequest(
                id=id_,
                prompt_ids=prepared.prompt_ids,
                params=prepared.params,
                arrival_s=prepared.arrival_s,
                preprocess_s=prepared.preprocess_s,
                generated_ids=tuple(generated_ids),
                delivered_text=delivered_text,
            )
        )

    def prepare_again(self, submit: Submit, prompt_ids: tuple[int, ...], seed: int) -> Prepared:
        """A request as it was prepared before it was written down."""
        params = attrs.evolve(sampling_params(submit.sampling), seed=seed)
        return Prepared(prompt_ids=prompt_ids, params=params, arrival_s=self._clock())

    async def _run_on_worker(self, encode: Callable[[], Sequence[int]]) -> Sequence[int]:
        return await trio.to_thread.run_sync(encode, limiter=self._limiter)


def _encode(encoder: PromptEncoder, submit: Submit) -> Sequence[int]:
    if submit.messages is not None:
        return encoder.encode_chat(submit.messages, parse_special=submit.parse_special)
    if submit.prompt is not None:
        return encoder.encode_text(submit.prompt, parse_special=submit.parse_special)
    return submit.token_ids or ()


def _encode_after(encoder: PromptEncoder, submit: Submit, preceding_ids: Sequence[int]) -> Sequence[int]:
    if submit.messages is not None:
        return encoder.encode_turn(submit.messages, preceding_ids, parse_special=submit.parse_special)
    if submit.prompt is not None:
        more = encoder.encode_text(submit.prompt, parse_special=submit.parse_special, is_start=False)
        return [*preceding_ids, *more]
    return [*preceding_ids, *(submit.token_ids or ())]


def _input_field(submit: Submit) -> str:
    if submit.messages is not None:
        return "messages"
    return "prompt" if submit.prompt is not None else "token_ids"


def sampling_params(sampling: Sampling) -> SamplingParams:
    """Sampling as the engine wants it: what the client left open keeps the engine's default.

    Raises:
        InvalidParameter: A value is out of range.
    """
    given: Mapping[str, Any] = attrs.asdict(sampling, recurse=False)
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def _check_ids(token_ids: Sequence[int] | None, vocab_size: int) -> None:
    """Refuses ids that the model has no row for: on the device they would end the engine, not the request."""
    for token_id in token_ids or ():
        if not 0 <= token_id < vocab_size:
            raise InvalidParameter("token_ids", f"must hold ids from 0 to {vocab_size - 1}, not {token_id}")


def _engine_failed() -> RequestRefused:
    return RequestRefused(
        ErrorCode.ENGINE_FAILED, "the engine has stopped: try elsewhere", retry_after_ms=RETRY_SOON_MS
    )


def describe_failure(error: BaseException) -> tuple[ErrorCode, str, bool]:
    """What a client may know of a failure: a code, a sentence, and whether to try again."""
    for kind, code in _REQUEST_FAULTS.items():
        if isinstance(error, kind):
            return code, str(error), False
    if isinstance(error, EngineError | EngineStopped):
        # The cause may name files or devices; it stands in the log and in readiness.
        return ErrorCode.ENGINE_FAILED, "the engine failed: try again elsewhere", True
    return ErrorCode.INTERNAL, "a bug in the server, see its log", False


def _refusal(error: EngineError | EngineStopped) -> RequestRefused:
    code, reason, retryable = describe_failure(error)
    field = error.field if isinstance(error, InvalidParameter) else None
    return RequestRefused(code, reason, field=field, retry_after_ms=RETRY_SOON_MS if retryable else None)
