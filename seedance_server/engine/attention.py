"""How a stock Transformers model comes to call our attention.

`use_packed_attention` registers one function under our own name and switches a model to it. The function
finds the step object among the forward call's keyword arguments and hands over: where each row reads and
writes is the step's business, so nothing here is global state and two engines in one process don't meet.

Transformers builds no masks for a name without a mask function, which is what we want. What a model asks for
beyond scaled dot products (soft caps, sinks, biases) is refused by name, never ignored.
"""

from typing import Any, Protocol

import torch
from transformers import AttentionInterface

__all__ = ["IMPLEMENTATION", "STEP_ARGUMENT", "AttentionStep", "UnsupportedAttention", "use_packed_attention"]

IMPLEMENTATION = "seedance_packed"
"""Name of our attention in Transformers' registry."""
STEP_ARGUMENT = "seedance_step"
"""Keyword argument of the model's forward call that carries the step object."""

_BEYOND_DOT_PRODUCTS = ("softcap", "s_aux", "position_bias")


class UnsupportedAttention(Exception):  # noqa: N818 - it is about the model, and caught by the loader
    """The model wants something of its attention that ours doesn't do."""


class AttentionStep(Protocol):
    """Attention of all rows of one forward call."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """Store keys and values, and attend.

        Args:
            layer: Index of the layer.
            query: [1, query heads, rows, key dim].
            key: [1, key heads, rows, key dim].
            value: [1, key heads, rows, value dim].
            scaling: Factor on the dot products; None for 1 / sqrt(key dim).
            window: Positions that a row sees, itself included; None for all before it.

        Returns:
            [1, rows, query heads, value dim].
        """


def use_packed_attention(model: Any) -> None:
    """Switch ``model`` to our attention; its forward call then needs the step object.

    Raises:
        UnsupportedAttention: The model's attention can't be switched.
    """
    AttentionInterface.register(IMPLEMENTATION, _packed_attention)
    try:
        model.set_attn_implementation(IMPLEMENTATION)
    except ValueError as error:
        raise UnsupportedAttention(str(error)) from error
    if model.config.get_text_config(decoder=True)._attn_implementation != IMPLEMENTATION:  # noqa: SLF001
        raise UnsupportedAttention("its attention doesn't go through Transformers' AttentionInterface")


def _packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _attention_mask: object,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    for name in _BEYOND_DOT_PRODUCTS:
        if extra.get(name) is not None:
            raise UnsupportedAttention(f"its attention uses {name}")
    step: AttentionStep | None = extra.get(STEP_ARGUMENT)
    if step is None:
        raise UnsupportedAttention("it doesn't pass keyword arguments on to its attention")
    window = int(sliding_window) if sliding_window else None
    return step.attend(int(module.layer_idx), query, key, value, scaling=scaling, window=window), None
