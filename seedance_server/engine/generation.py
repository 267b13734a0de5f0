"""One answer in the making: from sampled tokens to text, and to the reason why it ends.

The rules of ending, in this order, once `min_tokens` are there: an end-of-sequence or stop token (counted,
but not shown), a stop string (cut off with all that follows it), a form that is complete, then the limit of
length. Text that may still turn out to be part of a character or of a stop string is held back; the last
output brings what is left of it.

Pure Python; it neither samples nor schedules, and knows of time only what it is told.
"""

from collections.abc import Collection
from typing import Any, Protocol

from attrs import evolve

from seedance_server.engine.detokenizer import Detokenizer
from seedance_server.engine.errors import EngineError
from seedance_server.engine.sequence import (
    Finish,
    FinishReason,
    Sequence,
    SequenceOutput,
    StageTiming,
    TokenLogprob,
    Usage,
)
from seedance_server.engine.stop import StopChecker

__all__ = ["Form", "Generation"]


class Form(Protocol):
    """What an answer must be; see `constraint.py`."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing can be added."""

    def allowed(self) -> Any:
        """The tokens that may come next."""

    def accept(self, token_id: int) -> None:
        """A token was chosen."""

    def failure(self) -> EngineError | None:
        """Why nothing can come next, if it is its own fault."""


class Generation:
    """Turns one sequence's tokens into outputs.

    Args:
        sequence: Where tokens are appended.
        tokenizer: The model's; only read.
        eos_token_ids: Tokens that end an answer of this model.
        form: What the answer must be, at its start, if its request says so.
    """

    def __init__(
        self,
        sequence: Sequence,
        tokenizer: Any,
        eos_token_ids: Collection[int],
        form: Form | None = None,
    ) -> None:
        params = sequence.request.params
        self.sequence = sequence
        self.form = form
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._ends = self._eos | set(params.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopChecker(params.stop)
        self._timing = StageTiming(preprocess_s=sequence.request.preprocess_s)
        self._scheduled_s: float | None = None
        self._prefill_end_s: float | None = None
        self._has_shown = False

    def banned_ids(self, ahead: int = 0) -> tuple[int, ...]:
        """Tokens that must not be sampled next, or ``ahead`` tokens later: the answer would be too short."""
        short = self.sequence.completion_tokens + ahead < self.sequence.request.params.min_tokens
        return tuple(sorted(self._ends)) if short else ()

    def note_scheduled(self, now_s: float) -> None:
        """The sequence takes part in a step that starts at ``now_s``; only the first call counts."""
        if self._scheduled_s is None:
            request = self.sequence.request
            queue_s = max(0.0, now_s - request.arrival_s - request.preprocess_s)
            self._scheduled_s, self._timing = now_s, evolve(self._timing, queue_s=queue_s)

    def note_sampled(self, prefill_end_s: float, now_s: float) -> None:
        """The next token was chosen at ``now_s``; its forward pass ended at ``prefill_end_s``."""
        if self._has_shown or self._scheduled_s is None:
            return
        if self._prefill_end_s is None:
            self._prefill_end_s = prefill_end_s
            self._timing = evolve(self._timing, prefill_s=prefill_end_s - self._scheduled_s)
        self._timing = evolve(self._timing, first_decode_s=now_s - self._prefill_end_s)

    def accept(self, token_id: int, logprob: TokenLogprob | None = None) -> SequenceOutput:
        """Append a sampled token.

        Returns:
            What it brings; with ``finish`` set, it was the last.
        """
        sequence = self.sequence
        sequence.token_ids.append(token_id)
        output = SequenceOutput(
            id=sequence.id, token_ids=(token_id,), logprobs=() if logprob is None else (logprob,)
        )
        if token_id in self._ends:
            return self._finish(output, FinishReason.STOP, stop=None if token_id in self._eos else token_id)
        had_shown = self._has_shown
        text, matched = self._show(self._detokenizer.append((token_id,)))
        output = evolve(output, text=text, timing=None if had_shown is self._has_shown else self._timing)
        if matched is not None:
            return evolve(output, finish=self._end(FinishReason.STOP, matched))
        if self.form is not None:
            self.form.accept(token_id)
            if self.form.is_complete:
                return self._finish(output, FinishReason.STOP)
        if len(sequence.token_ids) >= sequence.limit:
            return self._finish(output, FinishReason.LENGTH)
        return output

    def abandon(self, reason: FinishReason, error: EngineError | None = None) -> SequenceOutput:
        """End the answer from outside.

        Returns:
            The last output, with the text that was held back so far.
        """
        if error is not None and self.form is not None:
            error = self.form.failure() or error
        return self._finish(SequenceOutput(id=self.sequence.id), reason, error=error)

    def _finish(
        self,
        output: SequenceOutput,
        reason: FinishReason,
        *,
        stop: int | None = None,
        error: EngineError | None = None,
    ) -> SequenceOutput:
        """Add the text held back, in which a stop string may yet be complete."""
        text, matched = self._show(self._detokenizer.flush())
        if matched is not None and error is None:
            return evolve(output, text=output.text + text, finish=self._end(FinishReason.STOP, matched))
        return evolve(
            output, text=output.text + text + self._stops.flush(), finish=self._end(reason, stop, error)
        )

    def _show(self, text: str) -> tuple[str, str | None]:
        # As in vLLM, the text of the first min_tokens tokens is never searched.
        if self.sequence.completion_tokens <= self.sequence.request.params.min_tokens:
            shown, matched = text, None
        else:
            shown, matched = self._stops.push(text)
        if shown and self._prefill_end_s is not None:  # not of an answer that is being taken up
            self._has_shown = True
        return shown, matched

    def _end(
        self, reason: FinishReason, stop: str | int | None = None, error: EngineError | None = None
    ) -> Finish:
        sequence = self.sequence
        usage = Usage(sequence.prompt_tokens, sequence.completion_tokens, sequence.cached_tokens or 0)
        return Finish(reason=reason, usage=usage, timing=self._timing, stop=stop, error=error)
