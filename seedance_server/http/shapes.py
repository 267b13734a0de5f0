"""An answer in OpenAI's two shapes, whole or in pieces.

The role stands in the piece that the first frame makes, so that there is no piece without a frame. Log
probabilities come with the text that they belong to.

It must not know where frames come from or how pieces are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field, frozen

from seedance_server.http.answer_id import AnswerId, Kind
from seedance_wire.messages import Delta, Error, Final, TokenLogprob

__all__ = ["Choice", "Shape"]

_OBJECTS = {
    Kind.CHAT: ("chat.completion", "chat.completion.chunk"),
    Kind.TEXT: ("text_completion", "text_completion"),
}


_NEVER = -9999.0
"""What OpenAI says for a token without any probability: JSON has no infinity."""


@define
class Choice:
    """One choice as far as it has come.

    Attributes:
        text: Its text, where it is gathered.
        logprobs: Of its tokens, likewise; each with the offset of its frame.
        final: How it ended, once it has.
        error: Why it failed, if it did.
    """

    text: list[str] = field(factory=list)
    logprobs: list[tuple[int, TokenLogprob]] = field(factory=list)
    final: Final | None = None
    error: Error | None = None


@frozen(kw_only=True)
class Shape:
    """What all pieces of an answer have in common.

    Attributes:
        answer: Its name and kind.
        created_s: When it was asked for, seconds since 1970.
        model: Who answers.
        fingerprint: The model's.
        prompts: How many prompts the choices are of.
        with_usage: Whether pieces say that usage will come.
    """

    answer: AnswerId
    created_s: int
    model: str
    fingerprint: bytes
    prompts: int = 1
    with_usage: bool = False

    def delta(self, index: int, frame: Delta) -> dict[str, Any]:
        """The piece that a frame makes."""
        logprobs = [(frame.offset, entry) for entry in frame.logprobs]
        if self.answer.kind is Kind.TEXT:
            return self._piece(index, {"text": frame.text}, logprobs, None)
        delta = {"role": "assistant"} if frame.id == 1 else {}
        return self._piece(index, {"delta": {**delta, "content": frame.text}}, logprobs, None)

    def finish(self, index: int, final: Final, *, is_first: bool) -> dict[str, Any]:
        """The last piece of a choice.

        Args:
            index: Which.
            final: How it ended.
            is_first: Whether it is the choice's only piece.
        """
        reason = final.finish_reason.value
        if self.answer.kind is Kind.TEXT:
            return self._piece(index, {"text": ""}, [], reason)
        delta = {"role": "assistant", "content": ""} if is_first else {}
        return self._piece(index, {"delta": delta}, [], reason)

    def _piece(
        self,
        index: int,
        content: dict[str, Any],
        logprobs: Sequence[tuple[int, TokenLogprob]],
        reason: str | None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            **content,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": reason,
        }
        piece = self._envelope(1) | {"choices": [choice]}
        return piece | {"usage": None} if self.with_usage else piece

    def usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The piece behind the last one of all."""
        return self._envelope(1) | {"choices": [], "usage": self._usage(choices)}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """An answer in one piece; every choice has ended well."""
        listed = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return self._envelope(0) | {"choices": listed, "usage": self._usage(choices)}

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        assert choice.final is not None  # noqa: S101 - ended well
        text = "".join(choice.text)
        content: dict[str, Any] = {"text": text}
        if self.answer.kind is Kind.CHAT:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {
            "index": index,
            **content,
            "logprobs": self._logprobs(choice.logprobs) if choice.logprobs else None,
            "finish_reason": choice.final.finish_reason.value,
        }

    def _envelope(self, form: int) -> dict[str, Any]:
        return {
            "id": self.answer.name,
            "object": _OBJECTS[self.answer.kind][form],
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": f"fp_{self.fingerprint.hex()[:12]}",
        }

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Each prompt counts once, however many choices it has."""
        finals = [choice.final for choice in choices if choice.final is not None]
        each = max(1, len(choices) // self.prompts)
        prompts = sum(final.usage.prompt_tokens for final in finals[::each])
        completions = sum(final.usage.completion_tokens for final in finals)
        cached = sum(final.usage.cached_tokens for final in finals[::each])
        return {
            "prompt_tokens": prompts,
            "completion_tokens": completions,
            "total_tokens": prompts + completions,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _logprobs(self, entries: Sequence[tuple[int, TokenLogprob]]) -> dict[str, Any]:
        if self.answer.kind is Kind.CHAT:
            return {"content": [_chat_logprob(entry) for _, entry in entries], "refusal": None}
        return {
            "tokens": [entry.text for _, entry in entries],
            "token_logprobs": [_finite(entry.logprob) for _, entry in entries],
            "top_logprobs": [
                {text: _finite(logprob) for _, text, logprob in entry.top} for _, entry in entries
            ],
            "text_offset": _offsets(entries),
        }


def _chat_logprob(entry: TokenLogprob) -> dict[str, Any]:
    top = [_token(text, logprob) for _, text, logprob in entry.top]
    return _token(entry.text, entry.logprob) | {"top_logprobs": top}


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, _NEVER)


def _offsets(entries: Iterable[tuple[int, TokenLogprob]]) -> list[int]:
    """Where each token's text begins, in UTF-8 bytes: of several in a frame, behind each other."""
    offsets: list[int] = []
    frame_offset, behind = -1, 0
    for offset, entry in entries:
        if offset != frame_offset:
            frame_offset = behind = offset
        offsets.append(behind)
        behind += len(entry.text.encode())
    return offsets
