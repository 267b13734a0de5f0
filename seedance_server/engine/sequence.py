"""The engine's unit of work and the words about it: what comes in, what is scheduled, what goes out.

A `Sequence` is a prompt, the ids generated so far and the blocks that hold the keys and values of its first
`computed` tokens. The invariant: `computed < len(token_ids)`, so there is always a token whose logits are
wanted next; losing the blocks only sets `computed` back to 0. Pure Python: text, models and threads are
elsewhere.
"""

from enum import Enum
from math import inf
from typing import Self

from attrs import define, evolve, field, frozen

from seedance_server.engine.block_pool import BlockTable
from seedance_server.engine.errors import EngineError
from seedance_server.engine.fair_queue import Flow
from seedance_server.engine.prefix_cache import BlockKey
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.token_history import TokenHistory

__all__ = [
    "Finish",
    "FinishReason",
    "GenerationRequest",
    "Sequence",
    "SequenceOutput",
    "SequenceStatus",
    "StageTiming",
    "TokenLogprob",
    "Usage",
]


@frozen(kw_only=True)
class GenerationRequest:
    """One prompt to continue, or an answer to take up where it was interrupted.

    An interrupted answer goes on as if nothing had happened: penalties, the random draw's position,
    ``min_tokens``, ``max_tokens`` and stop strings count from its true beginning, and text that was held back
    at the interruption comes out when it would have. Its outputs start with the first new token.

    Attributes:
        id: The caller's name for it; unique among the sequences that haven't finished.
        prompt_ids: Token ids, at least one.
        params: How tokens are chosen and when to end.
        arrival_s: When the request reached the server, on the engine's clock.
        preprocess_s: Seconds that went into template and tokenising since.
        generated_ids: The tokens of all outputs so far, of an answer to be taken up; without the output of
            `Engine.cancel`, if that interrupted it.
        delivered_text: The text of the same outputs, to be compared with what ``generated_ids`` give here;
            None to trust them.
        tenant: Who pays for it: steps and blocks are shared between tenants, and nothing of one tenant's
            is ever reused for another.
        weight: The tenant's share against that of the others, above 0; that of its newest request counts.
        priority: Its class, from -16 to 16; a higher number goes first, see `FairQueue`.
        session: The conversation that it is a turn of; "" for none. What the newest turn of a session leaves
            behind is kept for the next one.

    Raises:
        ValueError: There are ``generated_ids``, but no seed in ``params``: the one they were drawn with is
            needed to go on. Or weight or priority are out of their range.
    """

    id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    arrival_s: float
    preprocess_s: float = 0.0
    generated_ids: tuple[int, ...] = ()
    delivered_text: str | None = field(default=None, repr=False)
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    session: str = ""

    def __attrs_post_init__(self) -> None:
        if self.generated_ids and self.params.seed is None:
            raise ValueError("an answer can be taken up only with its seed")
        if not 0 < self.weight < inf:
            raise ValueError(f"a weight must be above 0, not {self.weight}")
        if not -16 <= self.priority <= 16:
            raise ValueError(f"a priority must be from -16 to 16, not {self.priority}")


class SequenceStatus(Enum):
    """Where a sequence stands; whether it is paused is a separate question."""

    WAITING = "waiting"  # holds no blocks: new, or preempted
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


@define(eq=False)
class Sequence:
    """The scheduler's view of one request.

    Attributes:
        request: What was asked.
        order: Place in the order of arrival; kept through preemption.
        seed: Decides, with the position, every random choice of this sequence.
        limit: Most tokens (prompt and output) that it may ever have.
        table: Its blocks.
        token_ids: Prompt, then output.
        flow: Whose share it takes from.
        computed: How many of ``token_ids`` have their keys and values in the blocks.
        draft: Tokens that may come next; to be run along with the last one, and proved by it.
        keys: Names of its first full blocks by content, as many as were asked for.
        recorded: How many of its full blocks the pool knows by them.
        cached_tokens: How many of the prompt didn't have to be computed; None before it first took part.
        paused: Not to be scheduled; its blocks may be taken when others need them.
        throttled: To be scheduled in every other step only.
        last_step: The scheduler's number of the last step that it took part in.
        history: Counts its tokens for those who ask.
    """

    request: GenerationRequest
    order: int
    seed: int
    limit: int
    table: BlockTable
    token_ids: list[int] = field(init=False)
    flow: Flow = field(init=False)
    status: SequenceStatus = SequenceStatus.WAITING
    computed: int = 0
    draft: tuple[int, ...] = ()
    keys: list[BlockKey] = field(init=False, factory=list, repr=False)
    recorded: int = 0
    cached_tokens: int | None = None
    paused: bool = False
    throttled: bool = False
    last_step: int = -1
    history: TokenHistory = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_ids)
        self.flow = Flow(self.request.priority, self.request.tenant)
        self.history = TokenHistory(len(self.request.prompt_ids))

    @property
    def id(self) -> int:
        """The request's id."""
        return self.request.id

    @property
    def remaining(self) -> int:
        """Tokens still to be run through the model before the next one can be sampled; at least 1."""
        return len(self.token_ids) - self.computed

    @property
    def in_prompt(self) -> bool:
        """Whether it has to join, or more than its newest token is still to be run through the model."""
        return self.status is SequenceStatus.WAITING or self.remaining > 1

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.request.prompt_ids)


@frozen
class TokenLogprob:
    """How likely a generated token was.

    Attributes:
        token_id: The token.
        text: The token decoded alone (it may hold a part of a character).
        logprob: Natural logarithm of its probability before temperature and truncation.
        top: The most likely tokens at this position as (id, text, logprob), best first.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@frozen
class Usage:
    """Token counts of a finished request; ``cached_tokens`` of the prompt were not computed again.

    For an answer that was taken up, they are those that its last beginning found.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@frozen(kw_only=True)
class StageTiming:
    """Where the time to the first token went, in seconds on the engine's clock. A stage not reached is 0.

    For an answer that was taken up this is the first *new* token, and its earlier ones count as prompt.

    Attributes:
        queue_s: From arrival, less ``preprocess_s``, to the first step that held some of the prompt.
        preprocess_s: Template and tokenising, as the request says.
        prefill_s: From that step to the end of the forward pass that completed the prompt, with any waiting
            for other sequences between its chunks.
        first_decode_s: From there until the first token was chosen whose text could be shown: an answer that
            begins with half a character or half a stop string takes further steps.
        cache_sync_s: Moving keys and values between memories; nothing moves them yet, so 0.
    """

    queue_s: float = 0.0
    preprocess_s: float = 0.0
    prefill_s: float = 0.0
    first_decode_s: float = 0.0
    cache_sync_s: float = 0.0

    @property
    def total_s(self) -> float:
        """From arrival until the first token was chosen."""
        return self.queue_s + self.preprocess_s + self.prefill_s + self.first_decode_s + self.cache_sync_s


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"
    ERROR = "error"


@frozen(kw_only=True)
class Finish:
    """The end of a sequence.

    Attributes:
        reason: Why.
        usage: Token counts; an end-of-sequence or stop token counts as generated.
        timing: Where the time to the first token went.
        stop: The stop string or stop token id that matched; None for the model's own end-of-sequence token.
        error: What went wrong, where ``reason`` is ERROR.
    """

    reason: FinishReason
    usage: Usage
    timing: StageTiming
    stop: str | int | None = None
    error: EngineError | None = None


@frozen(kw_only=True)
class SequenceOutput:
    """What one step brought for one sequence.

    Attributes:
        id: The request's id.
        text: New text; "" where all of it is held back (half a character, or what may begin a stop string).
        token_ids: New tokens.
        logprobs: One entry per new token, if asked for.
        timing: Where the time to the first token went; set on the output that shows the first text.
        finish: Set on the last output of a sequence.
    """

    id: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    timing: StageTiming | None = None
    finish: Finish | None = None

    @classmethod
    def refusing(cls, request: GenerationRequest, error: EngineError) -> Self:
        """The only output of a request that can't be served."""
        usage = Usage(len(request.prompt_ids), len(request.generated_ids))
        timing = StageTiming(preprocess_s=request.preprocess_s)
        finish = Finish(reason=FinishReason.ERROR, usage=usage, timing=timing, error=error)
        return cls(id=request.id, finish=finish)

    def followed_by(self, later: Self) -> Self:
        """Both as one; ``later`` is the same sequence's."""
        return evolve(
            later,
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
            timing=self.timing or later.timing,
        )
