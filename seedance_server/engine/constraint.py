"""What an answer may still say, where its request gives a JSON schema or a regular expression.

llguidance compiles either to a parser that lives through the answer's tokens and says, before each next one,
which tokens keep the answer what it must be. That follows from the tokens alone, so an interrupted answer
that is lived through again is where it was. A parser is compiled when its request is checked, on whatever
thread that is, and kept for the next request with the same text.

It knows nothing of sequences, sampling or clients.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection
from functools import cache
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.hf import from_tokenizer
from torch import Tensor

from seedance_server.engine.control_tokens import twin_tokenizer
from seedance_server.engine.errors import InvalidParameter
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine.token_bytes import TokenBytes, read_token_bytes

__all__ = ["Constraint", "Constraints"]

_KEPT = 64
"""Parsers kept for further requests; some hundred KiB each. Picked."""
_MOST_REASON_CHARS = 300
_SPREAD = (torch.arange(256)[:, None] >> torch.arange(8) & 1).bool().view(torch.int64)[:, 0]
"""Of each byte its bits, the lowest first, as eight bytes of 0 or 1 in one number."""


class Constraint:
    """One answer's.

    Args:
        matcher: At its start; owned from here on.
        field: The parameter that it comes from, for errors.
        vocab_size: Width of a row of logits.
    """

    def __init__(self, matcher: LLMatcher, field: str, vocab_size: int) -> None:
        self._matcher = matcher
        self._field = field
        self._vocab_size = vocab_size

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing can be added."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def failure(self) -> InvalidParameter | None:
        """Why it can't say anything more: it turned out to be too complex."""
        if not self._matcher.is_error():
            return None
        return InvalidParameter(self._field, _one_line(self._matcher.get_error()))

    def allowed(self) -> Tensor:
        """Bool ``[vocab_size]`` on the CPU: the tokens that may come next; none after a failure."""
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        # Spreading bits by a table: asked for bytes, the parser takes ten times as long.
        some = bits[: -(-self._vocab_size // 8)].int()
        return _SPREAD.index_select(0, some).view(torch.bool)[: self._vocab_size]

    def accept(self, token_id: int) -> None:
        """A token was chosen, the end of the answer apart."""
        self._matcher.consume_token(token_id)


class Constraints:
    """All of one model's; safe to use from several threads.

    Its vocabulary is read when it is first needed, or by `prepare`: where that is large it takes seconds, in
    which little other Python runs, and memory that a server without such requests has no use for.

    Args:
        tokenizer: The Transformers tokenizer.
        vocab_size: Width of a row of logits.
        eos_token_ids: Tokens that end an answer.
        offered: Whether requests may ask for a form at all.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int], *, offered: bool = True
    ) -> None:
        self._offered = offered
        self._vocab_size = vocab_size
        self._read = cache(lambda: _read_vocabulary(tokenizer, vocab_size, eos_token_ids))
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._matchers: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()

    def prepare(self) -> bool:
        """Reads the vocabulary, unless that has been done; False if this model's tokenizer can't be used."""
        return self._vocabulary() is not None

    def _vocabulary(self) -> LLTokenizer | None:
        with self._reading:
            return self._read()

    def check(self, params: SamplingParams) -> None:
        """Compiles what a request gives, if it does; takes its time.

        Raises:
            InvalidParameter: It can't be used.
        """
        self.make(params)

    def make(self, params: SamplingParams) -> Constraint | None:
        """The constraint of a request, at its start; None if it has none.

        Raises:
            InvalidParameter: It can't be used.
        """
        if params.json_schema is not None:
            return Constraint(
                self._matcher("json_schema", params.json_schema), "json_schema", self._vocab_size
            )
        if params.regex is not None:
            return Constraint(self._matcher("regex", params.regex), "regex", self._vocab_size)
        return None

    def _matcher(self, field: str, text: str) -> LLMatcher:
        if not self._offered:
            raise InvalidParameter(field, "isn't offered by this server")
        tokenizer = self._vocabulary()
        if tokenizer is None:
            raise InvalidParameter(field, "can't be used with this model's tokenizer")
        with self._lock:
            matcher = self._matchers.get((field, text))
            if matcher is not None:
                self._matchers.move_to_end((field, text))
                return matcher.deep_copy()
        matcher = _compile(tokenizer, field, text)
        with self._lock:
            self._matchers[field, text] = matcher
            while len(self._matchers) > _KEPT:
                self._matchers.popitem(last=False)
        return matcher.deep_copy()


class _Vocabulary:
    """A tokenizer as llguidance's wrapper wants to see it."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, vocabulary: TokenBytes, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        # The tokenizer itself may cut what it encodes, fill it up, or use tokens that the model doesn't have.
        self._twin, self._numbers = twin_tokenizer(
            tokenizer.backend_tokenizer, {}, below=len(vocabulary.tokens)
        )

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._twin.encode(text, add_special_tokens=False).ids
        return [self._numbers.get(id_, id_) for id_ in ids]


def _read_vocabulary(tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int]) -> LLTokenizer | None:
    if not eos_token_ids:
        return None
    ends = sorted(eos_token_ids)
    try:
        if (vocabulary := read_token_bytes(tokenizer, vocab_size)) is None:
            return from_tokenizer(tokenizer, vocab_size, ends)
        wrapped = TokenizerWrapper(_Vocabulary(tokenizer, vocabulary, ends[0]))
        # In two pieces, since no other Python runs beside either. Slices make masks cost a quarter.
        bare = LLTokenizer(wrapped, vocab_size, ends, slices=[])
        return bare.with_slices(LLTokenizer.general_slices())
    except (ValueError, TypeError, AttributeError, LookupError):  # no fast tokenizer, or of an unknown kind
        return None


def _compile(tokenizer: LLTokenizer, field: str, text: str) -> LLMatcher:
    try:
        if field == "json_schema":
            grammar = LLMatcher.grammar_from_json_schema(text)
        else:
            grammar = LLMatcher.grammar_from_regex(text)
    except ValueError as error:
        raise InvalidParameter(field, f"can't be used: {_one_line(str(error))}") from error
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if matcher.is_error():
        raise InvalidParameter(field, f"can't be used: {_one_line(matcher.get_error())}")
    return matcher


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MOST_REASON_CHARS]
