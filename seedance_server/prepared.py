"""A request made ready for the engine: its prompt as ids, its parameters in the engine's terms.

It must not know who asks, whether there is room or where answers go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import field, frozen

from seedance_server.engine.errors import InvalidParameter
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.served_model import PromptEncoder
from seedance_wire.messages import Sampling, Submit

__all__ = ["Prepared", "check_ids", "encode_prompt", "input_field", "sampling_params"]


@frozen(kw_only=True)
class Prepared:
    """A request that may run: all that its tokens depend on but the model.

    Attributes:
        prompt_ids: What the model is given.
        params: How to sample; the seed is chosen.
        arrival_s: When it came, on the engine's clock.
        preprocess_s: Seconds that its encoding took.
        reserve_tokens: What it counts in its tenant's quota until it is known what it used.
        tenant: Whose it is.
        session: The session that it was made in.
    """

    prompt_ids: tuple[int, ...] = field(repr=False)
    params: SamplingParams
    arrival_s: float
    preprocess_s: float = 0.0
    reserve_tokens: int = 0
    tenant: str = ""
    session: str = ""

    @property
    def seed(self) -> int:
        """Decides, with the position, every random choice."""
        assert self.params.seed is not None  # noqa: S101 - chosen when it was prepared
        return self.params.seed


def encode_prompt(
    encoder: PromptEncoder, submit: Submit, preceding_ids: Sequence[int] | None
) -> Sequence[int]:
    """Makes ids of what a request says; takes its time, so on a worker thread.

    Args:
        encoder: The model's.
        submit: The request.
        preceding_ids: The exact ids of the conversation so far, where it goes on from one.

    Raises:
        EngineError: What it says can't become a prompt.
    """
    if preceding_ids is None:
        return _encode(encoder, submit)
    return _encode_after(encoder, submit, preceding_ids)


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


def input_field(submit: Submit) -> str:
    """The field that holds a request's input."""
    if submit.messages is not None:
        return "messages"
    return "prompt" if submit.prompt is not None else "token_ids"


def sampling_params(sampling: Sampling, *, ends: tuple[str, ...] = ()) -> SamplingParams:
    """Sampling as the engine wants it: what the client left open keeps the engine's default.

    Args:
        sampling: As the client said it.
        ends: Stop strings beside its own.

    Raises:
        InvalidParameter: A value is out of range.
    """
    given: Mapping[str, Any] = attrs.asdict(sampling, recurse=False) | {"stop": (*sampling.stop, *ends)}
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def check_ids(token_ids: Sequence[int] | None, vocab_size: int) -> None:
    """Refuses ids that the model has no row for: on the device they would end the engine, not the request.

    Raises:
        InvalidParameter: There is one.
    """
    for token_id in token_ids or ():
        if not 0 <= token_id < vocab_size:
            raise InvalidParameter("token_ids", f"must hold ids from 0 to {vocab_size - 1}, not {token_id}")
