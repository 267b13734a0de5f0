"""To what a step's shapes are rounded up, so that libraries compute a row alike whatever stands beside it.

A library chooses how it adds by the shape of what it is given: how many rows a product has, over how many
positions attention goes. Rounded up far enough, its choice, and with it each row's bits, is always the same.
How far follows from how PyTorch's kernels for CPUs are built; nobody promises it, and `invariance.py` looks.
"""

from attrs import frozen

from seedance_server.engine.config import DeterministicName

__all__ = ["USUAL", "Padding", "choose_padding", "rounded_up"]


def rounded_up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


@frozen(kw_only=True)
class Padding:
    """What shapes are rounded up to.

    Attributes:
        least_rows: Fewest rows of a forward pass, and fewest whose logits are wanted.
        rows: Both are a multiple of this.
        queries: Rows of one attention are a multiple of this.
        positions: Positions that one attention reads are a multiple of this.
        begins: And they begin at a multiple of this.
    """

    least_rows: int = 1
    rows: int = 1
    queries: int = 1
    positions: int = 64
    begins: int = 1

    def padded_rows(self, rows: int) -> int:
        """Rows of a forward pass that has so many of its own."""
        return max(self.least_rows, rounded_up(rows, self.rows))


USUAL = Padding()
"""Without any trouble; reads in multiples of 64 come in few shapes. Picked."""

_TILE = 4
"""Rows that a product takes at once, at the least: a remainder of fewer goes to another kernel."""
_BLOCK = 512
"""Positions that attention sums up at once, by itself: what it does beyond depends on nothing before."""
_MOST_ROWS = 32
"""To which few rows are padded for many threads; more would cost too much. Picked."""


def choose_padding(
    deterministic: DeterministicName, *, least_rows: int, threads: int, is_cpu: bool
) -> Padding:
    """The padding for one engine.

    Args:
        deterministic: "on" for whatever helps, "auto" for what costs next to nothing, "off" for none.
        least_rows: What the backend asks for; 1 for one that is invariant by itself.
        threads: Among which a product's rows may be shared out.
        is_cpu: Whether the model runs there; nothing is known of other devices' kernels.
    """
    if deterministic == "off" or least_rows == 1:
        return USUAL
    if deterministic == "auto" or not is_cpu:
        return Padding(least_rows=least_rows)
    rows = max(least_rows, min(_TILE * threads, _MOST_ROWS))
    return Padding(least_rows=rows, rows=rows, queries=_TILE, positions=_BLOCK, begins=_BLOCK)
