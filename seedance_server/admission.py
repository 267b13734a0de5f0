"""Accept or refuse: from a SUBMIT to ids that can be generated from, or to a typed refusal.

A request passes the cheap limits first, then its prompt is encoded on a worker thread (the event loop never
tokenises), then the engine says whether it could ever run. What passed is complete and exact: it can be
written down and generated from, now or after a restart. What can't run now waits for its turn, and is told
where it stands. Whatever goes wrong in here belongs to this one
request: its neighbours and its connection don't notice. What a refusal says is fit for the client, and a bug
is only ever called `internal`.

It must not know sockets, peers or frames.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

import attrs
import structlog
import trio

from seedance_server.accounts import Account, Accounts
from seedance_server.admission_queue import AdmissionQueue, QueueStatistics, Ticket
from seedance_server.engine.errors import EngineError, InvalidParameter
from seedance_server.engine.sequence import GenerationRequest
from seedance_server.engine_loop import EngineLoop, Generation
from seedance_server.errors import EngineStopped, RequestRefused
from seedance_server.fair_turns import FairTurns
from seedance_server.prepared import Prepared, check_ids, encode_prompt, input_field, sampling_params
from seedance_server.refusals import RETRY_SOON_MS, refusal_of
from seedance_server.served_model import ServedModel
from seedance_server.suspects import Suspects
from seedance_wire.messages import ErrorCode, Submit

__all__ = ["Admission"]

_log = structlog.get_logger(__name__)

_LIKELY_TOKENS = 128
"""Room in the KV pool that is looked for beyond the prompt: a usual answer's, picked. A longer one finds its
blocks as it grows, or the engine preempts."""
_AHEAD = 2
"""Requests of a tenant that may be in the engine ahead of the room: one to begin,
one so that the engine never waits."""
_FEW = 8
_UNSAID_TOKENS = 512
"""Reserved for an answer whose ``max_tokens`` isn't said: more than most have, picked. A longer one is
charged when it ends."""


def _random_seed() -> int:
    return secrets.randbits(63)


RunInThread = Callable[[Callable[[], Sequence[int]]], Awaitable[Sequence[int]]]


class Admission:
    """Decides on requests of all connections.

    Args:
        model: What is served.
        engine_loop: Where accepted requests go.
        accounts: What each tenant uses.
        max_generations: Requests at once, from SUBMIT to the last frame.
        max_waiting: Those of them that wait for their turn in the engine.
        max_waiting_per_tenant: The same of one tenant.
        preprocess_workers: Prompts encoded at once; tenants take turns.
        clock: Seconds of the engine's clock.
        run_in_thread: Runs a prompt's encoding off the event loop; None for trio's worker threads.
        entropy: Seeds for requests that name none, from 0 to 2**63 - 1.

    Attributes:
        model: What is served.
        clock: Seconds of the engine's clock.
        suspects: Streams that processes ended with, one of which may be the cause.
    """

    def __init__(
        self,
        model: ServedModel,
        engine_loop: EngineLoop,
        *,
        accounts: Accounts,
        max_generations: int,
        max_waiting: int,
        max_waiting_per_tenant: int,
        preprocess_workers: int,
        clock: Callable[[], float] = time.monotonic,
        run_in_thread: RunInThread | None = None,
        entropy: Callable[[], int] = _random_seed,
    ) -> None:
        self.model = model
        self._engine_loop = engine_loop
        self._accounts = accounts
        self._max_generations = max_generations
        self.clock = clock
        self._entropy = entropy
        self._limiter = trio.CapacityLimiter(preprocess_workers)
        self._run_in_thread = run_in_thread or self._run_on_worker
        self._preprocessing = FairTurns(preprocess_workers)
        self._queue = AdmissionQueue(
            sequences=model.capacity.sequences, blocks=model.capacity.blocks, ahead=_AHEAD
        )
        self._max_waiting = max_waiting
        self._max_waiting_per_tenant = max_waiting_per_tenant
        self._waiting = 0
        self._open = 0
        self._draining = False
        self.suspects = Suspects()

    @property
    def open_requests(self) -> int:
        """Requests between SUBMIT and their last frame."""
        return self._open

    @property
    def has_failed(self) -> bool:
        """Whether the engine takes no more work: this process tries nothing any more."""
        return self._engine_loop.failure is not None

    def drain(self) -> None:
        """From now on refuses everything with DRAINING; what runs goes on."""
        self._draining = True

    def enter(self, tenant: str, *, is_known: bool = False) -> None:
        """Counts a tenant's request in, before anything is done for it; pair with `leave`.

        Args:
            tenant: Whose it is.
            is_known: It came before and is a stream: no limit holds for it.

        Raises:
            RequestRefused: DRAINING, ENGINE_FAILED, OVERLOADED or RATE_LIMITED (the tenant's own limit), all
                worth a retry elsewhere or later.
        """
        account = self._accounts.of(tenant)
        if self._draining:
            raise RequestRefused(
                ErrorCode.DRAINING, "the server is shutting down: go elsewhere", retry_after_ms=RETRY_SOON_MS
            )
        if self.has_failed:
            raise RequestRefused(
                ErrorCode.ENGINE_FAILED, "the engine has stopped: try elsewhere", retry_after_ms=RETRY_SOON_MS
            )
        if not is_known:
            self._check_limits(account)
        self._waiting += 1
        account.waiting += 1
        self.enter_again(tenant)

    def _check_limits(self, account: Account) -> None:
        if self._open >= self._max_generations:
            raise RequestRefused(
                ErrorCode.OVERLOADED, "too many requests at once: try again", retry_after_ms=RETRY_SOON_MS
            )
        if self._waiting >= self._max_waiting or account.waiting >= self._max_waiting_per_tenant:
            raise RequestRefused(
                ErrorCode.OVERLOADED, "too many requests wait: try again", retry_after_ms=self.wait_ms()
            )
        if not account.has_room_for_request:
            raise RequestRefused(
                ErrorCode.RATE_LIMITED,
                f"at most {account.tenant.max_streams} requests of this tenant at once",
                retry_after_ms=RETRY_SOON_MS,
            )

    def enter_again(self, tenant: str) -> None:
        """Counts in a stream that was accepted before, limit or not: its client was promised the rest."""
        self._open += 1
        self._accounts.of(tenant).requests += 1

    def leave(self, tenant: str, *, has_begun: bool = False) -> None:
        """Counts a request out, which has had its turn or hasn't."""
        if not has_begun:
            self.note_begun(tenant)
        self._open -= 1
        self._accounts.of(tenant).requests -= 1

    def note_begun(self, tenant: str) -> None:
        """A request that was counted in has its turn, and waits no more."""
        self._waiting -= 1
        self._accounts.of(tenant).waiting -= 1

    # ---- waiting for the engine

    def join(
        self,
        prepared: Prepared,
        *,
        generated: int,
        is_returning: bool,
        is_resting: Callable[[], bool],
        on_turn: Callable[[], None],
    ) -> Ticket:
        """Puts a request in line for the engine; it may have its turn at once. Pair with `quit`.

        Args:
            prepared: The request.
            generated: Tokens that it has got before.
            is_returning: It was in the engine before, and goes ahead of its tenant's others.
            is_resting: Asked whether its reader holds it up.
            on_turn: Called when it may go to the engine.
        """
        likely = min(
            prepared.reserve_tokens or self.model.context_tokens, len(prepared.prompt_ids) + _LIKELY_TOKENS
        )
        ticket = Ticket(
            tenant=prepared.tenant,
            weight=self._accounts.of(prepared.tenant).tenant.weight,
            blocks=self.model.capacity.blocks_for(max(likely, len(prepared.prompt_ids) + generated + 1)),
            joined_s=trio.current_time(),
            is_returning=is_returning,
            is_resting=is_resting,
            on_turn=on_turn,
        )
        self._queue.join(ticket, ticket.joined_s)
        return ticket

    def note_started(self, ticket: Ticket) -> None:
        """The engine has begun with it; safe to repeat."""
        self._queue.note_started(ticket, trio.current_time())

    def quit(self, ticket: Ticket) -> None:
        """It isn't in the engine any more, or doesn't want to."""
        self._queue.leave(ticket, trio.current_time())

    def advance(self) -> None:
        """Looks again whether there is room for more: a generation rests, or has ended."""
        self._queue.advance(trio.current_time())

    def place(self, ticket: Ticket) -> tuple[int, int | None]:
        """How many requests have their turn before it, and how many milliseconds that may take."""
        position = self._queue.position(ticket)
        wait_s = self._queue.estimated_wait_s(position)
        return position, None if wait_s is None else math.ceil(wait_s * 1e3)

    def wait_ms(self) -> int:
        """What somebody is told to wait who finds the line full: until a few of it have had their turn."""
        wait_s = self._queue.estimated_wait_s(_FEW)
        return RETRY_SOON_MS if wait_s is None else max(RETRY_SOON_MS, math.ceil(wait_s * 1e3))

    def queue_statistics(self) -> QueueStatistics:
        """The line for the engine."""
        return self._queue.statistics()

    async def prepare(
        self,
        submit: Submit,
        preceding_ids: Sequence[int] | None = None,
        *,
        tenant: str = "",
        session: str = "",
        arrival_s: float | None = None,
    ) -> Prepared:
        """Encodes and checks a request.

        Args:
            submit: The request.
            preceding_ids: The exact ids of the conversation so far, where the request goes on from one.
            tenant: Whose it is.
            session: The session that it is made in.
            arrival_s: When it came, on the engine's clock; None for now.

        Raises:
            RequestRefused: With everything that the client should know.

        If cancelled, waiting for a worker ends at once; a begun encoding ends first.
        """
        arrival_s = self.clock() if arrival_s is None else arrival_s
        try:
            prepared = await self._prepare(submit, preceding_ids, arrival_s, tenant)
            return attrs.evolve(prepared, tenant=tenant, session=session)
        except RequestRefused:
            raise
        except (EngineError, EngineStopped) as error:
            raise refusal_of(error) from error
        except Exception as error:
            _log.exception("request failed in preprocessing", sequence_id=submit.sequence_id)
            raise RequestRefused(ErrorCode.INTERNAL, "a bug in the server, see its log") from error

    async def _prepare(
        self, submit: Submit, preceding_ids: Sequence[int] | None, arrival_s: float, tenant: str
    ) -> Prepared:
        if submit.model is not None and submit.model != self.model.name:
            raise RequestRefused(
                ErrorCode.MODEL_NOT_FOUND, f"this server serves {self.model.name}", field="model"
            )
        in_turns = submit.messages is not None and not submit.sampling.ignore_eos
        params = sampling_params(submit.sampling, ends=self.model.answer_ends if in_turns else ())
        params.validate_for(self.model.vocab_size)
        check_ids(submit.token_ids, self.model.vocab_size)
        began_s = self.clock()

        def encode() -> Sequence[int]:
            nonlocal began_s
            began_s = self.clock()
            self.model.check_form(params)
            return encode_prompt(self.model.encoder, submit, preceding_ids)

        async with self._preprocessing.turn(tenant):
            prompt_ids = tuple(await self._run_in_thread(encode))
        encoded_s = self.clock()
        if not prompt_ids:
            raise InvalidParameter(input_field(submit), "must hold at least one token")
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

    def note_tokens(self, tenant: str, *, prompt: int = 0, generated: int = 0) -> None:
        """Counts tokens that the engine had to do for a tenant, for metrics; quotas are another matter."""
        account = self._accounts.of(tenant)
        account.prompt_tokens += prompt
        account.generated_tokens += generated

    def account_of(self, tenant: str) -> Account:
        """What a tenant uses, and what it may still use."""
        return self._accounts.of(tenant)

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
        tenant = self._accounts.of(prepared.tenant).tenant
        return self._engine_loop.submit(
            lambda id_: GenerationRequest(
                id=id_,
                prompt_ids=prepared.prompt_ids,
                params=prepared.params,
                arrival_s=prepared.arrival_s,
                preprocess_s=prepared.preprocess_s,
                generated_ids=tuple(generated_ids),
                delivered_text=delivered_text,
                tenant=prepared.tenant,
                weight=tenant.weight,
                priority=tenant.priority.rank,
                session=prepared.session,
            )
        )

    def prepare_again(
        self, submit: Submit, prompt_ids: tuple[int, ...], seed: int, *, tenant: str = "", session: str = ""
    ) -> Prepared:
        """A request as it was prepared before it was written down."""
        params = attrs.evolve(sampling_params(submit.sampling), seed=seed)
        arrival_s = self.clock()
        return Prepared(
            prompt_ids=prompt_ids, params=params, arrival_s=arrival_s, tenant=tenant, session=session
        )

    async def _run_on_worker(self, encode: Callable[[], Sequence[int]]) -> Sequence[int]:
        return await trio.to_thread.run_sync(encode, limiter=self._limiter)
