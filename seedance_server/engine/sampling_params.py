"""How one request wants its tokens chosen, under OpenAI's and vLLM's names.

The invariant: a SamplingParams that exists is usable. Every range is checked when it is made, so the
sampler and the scheduler never meet NaN, a bool in place of a number or a stop string that is empty. What
depends on the model (is this token id in its vocabulary?) is checked by `SamplingParams.validate_for`.

Pure Python: it knows nothing of torch, models or clocks.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import Attribute, field, frozen

from seedance_server.engine.errors import InvalidParameter

__all__ = [
    "GREEDY_BELOW",
    "MAX_GRAMMAR_CHARS",
    "MAX_LOGIT_BIAS",
    "MAX_STOPS",
    "MAX_STOP_CHARS",
    "MAX_STOP_TOKEN_IDS",
    "MAX_TOP_LOGPROBS",
    "SamplingParams",
]

GREEDY_BELOW = 1e-5
"""Temperatures below this mean "the most likely token", as in vLLM: dividing by much less overflows fp32."""
MAX_STOPS = 16
"""Stop strings per request; each is compared with each new piece of text."""
MAX_STOP_CHARS = 256
"""Length of one stop string: that much text is held back from the client at worst. Picked, not measured."""
MAX_STOP_TOKEN_IDS = 256
"""Stop token ids per request; more than any known model has control tokens worth stopping at."""
MAX_LOGIT_BIAS = 1024
"""Entries of logit_bias (OpenAI allows 300 in practice, 1024 by its documentation)."""
MAX_GRAMMAR_CHARS = 65_536
"""Length of a JSON schema or regular expression: compiling it takes a worker's time. Picked, not measured."""
MAX_TOP_LOGPROBS = 20
"""Alternatives reported for each token (OpenAI's limit)."""

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1

_Attribute: TypeAlias = "Attribute[Any]"


def _shown(value: object) -> str:
    """A short and safe image of a refused value: it travels to the client and into logs."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number beyond 64 bits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


class _Number:
    """Validates a finite float (or int) within bounds, both inclusive unless ``above`` is given."""

    def __init__(self, low: float, high: float, *, above: bool = False) -> None:
        self._low, self._high, self._above = low, high, above

    def __call__(self, _owner: object, attribute: _Attribute, value: Any) -> None:
        name = attribute.name
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidParameter(name, f"must be a number, not {_shown(value)}")
        # NaN compares false with everything, so the test is written to accept, not to refuse.
        if self._low <= value <= self._high and not (self._above and value == self._low):
            return
        start = f"above {self._low:g}" if self._above else f"at least {self._low:g}"
        raise InvalidParameter(name, f"must be {start} and at most {self._high:g}, not {_shown(value)}")


class _Integer:
    """Validates an int (never a bool) within bounds, both inclusive."""

    def __init__(self, low: int, high: int, *, optional: bool = False) -> None:
        self._low, self._high, self._optional = low, high, optional

    def __call__(self, _owner: object, attribute: _Attribute, value: Any) -> None:
        if value is None and self._optional:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidParameter(attribute.name, f"must be an integer, not {_shown(value)}")
        if not self._low <= value <= self._high:
            raise InvalidParameter(
                attribute.name, f"must be from {self._low} to {self._high}, not {_shown(value)}"
            )


def _check_flag(_owner: object, attribute: _Attribute, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidParameter(attribute.name, f"must be true or false, not {_shown(value)}")


def _check_stop(_owner: object, attribute: _Attribute, value: Any) -> None:
    if not isinstance(value, tuple):
        raise InvalidParameter(attribute.name, f"must be a list of strings, not {_shown(value)}")
    if len(value) > MAX_STOPS:
        raise InvalidParameter(attribute.name, f"must hold at most {MAX_STOPS} strings, not {len(value)}")
    for stop in value:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidParameter(
                attribute.name, f"must hold strings of 1 to {MAX_STOP_CHARS} characters, not {_shown(stop)}"
            )


def _check_stop_token_ids(_owner: object, attribute: _Attribute, value: Any) -> None:
    if not isinstance(value, tuple):
        raise InvalidParameter(attribute.name, f"must be a list of token ids, not {_shown(value)}")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise InvalidParameter(
            attribute.name, f"must hold at most {MAX_STOP_TOKEN_IDS} ids, not {len(value)}"
        )
    for token_id in value:
        _check_token_id(attribute.name, token_id, _INT32_MAX + 1)


def _check_logit_bias(_owner: object, attribute: _Attribute, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InvalidParameter(attribute.name, f"must map token ids to numbers, not {_shown(value)}")
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidParameter(
            attribute.name, f"must hold at most {MAX_LOGIT_BIAS} entries, not {len(value)}"
        )
    for token_id, bias in value.items():
        _check_token_id(attribute.name, token_id, _INT32_MAX + 1)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise InvalidParameter(attribute.name, f"must hold numbers from -100 to 100, not {_shown(bias)}")


def _check_grammar(_owner: object, attribute: _Attribute, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and 1 <= len(value) <= MAX_GRAMMAR_CHARS):
        raise InvalidParameter(
            attribute.name, f"must be a text of 1 to {MAX_GRAMMAR_CHARS} characters, not {_shown(value)}"
        )


def _check_token_id(name: str, token_id: object, vocab_size: int) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
        raise InvalidParameter(
            name, f"must hold token ids from 0 to {vocab_size - 1}, not {_shown(token_id)}"
        )


def _tuple_of(value: Any) -> Any:
    """Lists become tuples; a bare string stays one, to be refused rather than split into characters."""
    return tuple(value) if isinstance(value, list) else value


def _dict_of(value: Any) -> Any:
    """A copy, so that the caller's mapping may change; a dict, so that it pickles."""
    return dict(value) if isinstance(value, Mapping) else value


@frozen(kw_only=True)
class SamplingParams:
    """Validated sampling parameters of one request.

    They apply in this order: repetition penalty, presence and frequency penalty, ``logit_bias``, ban of end
    tokens (``min_tokens``), temperature, ``top_k``, ``top_p``, ``min_p``, choice.

    Attributes:
        temperature: 0 to 100; below 1e-5 the most likely token is taken and top_k, top_p and min_p are moot.
        top_p: Above 0, at most 1: the smallest set of most likely tokens whose mass reaches it.
        top_k: Keep this many most likely tokens; 0 or -1 keeps all; at most 2**31 - 1.
        min_p: 0 to 1: drop tokens below this share of the most likely one's probability.
        seed: Any signed 64-bit integer. None lets the engine pick one.
        stop: Strings that end the output and don't appear in it.
        stop_token_ids: Token ids that end the output.
        max_tokens: New tokens at most, 1 to 2**63 - 1; 0 and negative numbers are refused. It is a bound, not
            a reservation: a number beyond the context just means "as many as fit", as None does.
        min_tokens: No end-of-sequence or stop token before this many new tokens; at most ``max_tokens``.
        ignore_eos: Go on after the model's end-of-sequence token.
        repetition_penalty: 0.01 to 100, over prompt and output; 1 is off.
        presence_penalty: -2 to 2, for tokens already in the output.
        frequency_penalty: -2 to 2, for each time a token is in the output.
        logit_bias: Token id to a number from -100 to 100 that is added to its logit.
        json_schema: JSON text of a JSON schema that the answer must be valid under; not beside ``regex``.
        regex: A regular expression that the whole answer must match.
        logprobs: Report the log-probability of each chosen token.
        top_logprobs: Report this many most likely alternatives too, 0 to 20; needs ``logprobs``.

    Raises:
        InvalidParameter: On construction, naming the first field that is out of range.
    """

    temperature: float = field(default=1.0, validator=_Number(0, 100))
    top_p: float = field(default=1.0, validator=_Number(0, 1, above=True))
    top_k: int = field(default=0, validator=_Integer(-1, _INT32_MAX))
    min_p: float = field(default=0.0, validator=_Number(0, 1))
    seed: int | None = field(default=None, validator=_Integer(-(2**63), _INT64_MAX, optional=True))
    stop: tuple[str, ...] = field(default=(), converter=_tuple_of, validator=_check_stop)
    stop_token_ids: tuple[int, ...] = field(default=(), converter=_tuple_of, validator=_check_stop_token_ids)
    max_tokens: int | None = field(default=None, validator=_Integer(1, _INT64_MAX, optional=True))
    min_tokens: int = field(default=0, validator=_Integer(0, _INT64_MAX))
    ignore_eos: bool = field(default=False, validator=_check_flag)
    repetition_penalty: float = field(default=1.0, validator=_Number(0.01, 100))
    presence_penalty: float = field(default=0.0, validator=_Number(-2, 2))
    frequency_penalty: float = field(default=0.0, validator=_Number(-2, 2))
    logit_bias: Mapping[int, float] = field(
        factory=dict, converter=_dict_of, validator=_check_logit_bias, hash=False
    )
    json_schema: str | None = field(default=None, validator=_check_grammar)
    regex: str | None = field(default=None, validator=_check_grammar)
    logprobs: bool = field(default=False, validator=_check_flag)
    top_logprobs: int = field(default=0, validator=_Integer(0, MAX_TOP_LOGPROBS))

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                "min_tokens", f"must be at most max_tokens ({self.max_tokens}), not {self.min_tokens}"
            )
        if self.is_constrained:
            self._check_constraint("regex" if self.json_schema is None else "json_schema")
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter("top_logprobs", "needs logprobs to be true")

    def _check_constraint(self, name: str) -> None:
        """What would contradict it: it says itself where the answer ends."""
        if self.json_schema is not None and self.regex is not None:
            raise InvalidParameter("regex", "can't stand beside json_schema")
        if self.ignore_eos or self.min_tokens:
            other = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise InvalidParameter(other, f"can't stand beside {name}, which says where the answer ends")

    @property
    def is_constrained(self) -> bool:
        """Whether the answer must have a certain form."""
        return self.json_schema is not None or self.regex is not None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, without chance."""
        return self.temperature < GREEDY_BELOW

    def validate_for(self, vocab_size: int) -> None:
        """Checks what depends on the model.

        Args:
            vocab_size: Number of token ids, i.e. the width of a row of logits.

        Raises:
            InvalidParameter: A token id in ``stop_token_ids`` or ``logit_bias`` isn't in the vocabulary.
        """
        for token_id in self.stop_token_ids:
            _check_token_id("stop_token_ids", token_id, vocab_size)
        for token_id in self.logit_bias:
            _check_token_id("logit_bias", token_id, vocab_size)
