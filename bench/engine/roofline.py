"""The least time of a decode step, from its matrix products and from what the machine can do at best.

A step reads every weight once and multiplies each row with it, so it can't take less than the greater of the
two times.
"""

from __future__ import annotations

from attrs import frozen

from engine.peaks import Machine

__all__ = ["Products", "floor_ms"]


@frozen
class Products:
    """The matrix products of a decoder's step: `(columns, width)` of each, layer by layer, the head last."""

    shapes: tuple[tuple[int, int], ...]

    @property
    def weights(self) -> int:
        """Numbers in all the matrices."""
        return sum(columns * width for columns, width in self.shapes)

    @classmethod
    def of(cls, config: object) -> Products:
        """Read them from the configuration of a Transformers model with the usual decoder."""
        hidden: int = config.hidden_size  # type: ignore[attr-defined]
        inner: int = config.intermediate_size  # type: ignore[attr-defined]
        heads: int = config.num_attention_heads  # type: ignore[attr-defined]
        shared: int = config.num_key_value_heads  # type: ignore[attr-defined]
        size: int = getattr(config, "head_dim", None) or hidden // heads
        layer = (
            ((heads + 2 * shared) * size, hidden),
            (hidden, heads * size),
            (2 * inner, hidden),
            (hidden, inner),
        )
        layers: int = config.num_hidden_layers  # type: ignore[attr-defined]
        vocabulary: int = config.vocab_size  # type: ignore[attr-defined]
        return cls((*layer * layers, (vocabulary, hidden)))


def floor_ms(machine: Machine, products: Products, rows: int) -> float:
    """Return the least time of the products of a step of so many rows, in ms."""
    reading = 2.0 * products.weights / machine.bytes_per_s
    multiplying = 2.0 * rows * products.weights / machine.operations_per_s
    return 1e3 * max(reading, multiplying)
