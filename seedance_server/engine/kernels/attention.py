"""Attention over the paged cache, for any rows of any sequences in one call.

`PagedRows` is what the kernel reads of a step: where each row stands and the block tables of the sequences.
The kernel looks blocks up by itself, so nothing is gathered or masked, and a row's result doesn't depend on
the others. It knows tensors and block numbers; sequences, groups and planes are the cache's business.
"""

import ctypes
from array import array
from collections.abc import Iterable, Sequence

import torch
from attrs import define, field
from torch import Tensor

from seedance_server.engine.kernels.library import open_library
from seedance_server.engine.kernels.linear import threads_handle
from seedance_server.engine.kernels.structures import Pages, Reach, Step

__all__ = ["PagedRows", "attend_paged", "pages_of"]


@define(eq=False)
class PagedRows:
    """The rows of one step.

    Attributes:
        sequences: For each row the index of its sequence.
        positions: For each row its position there.
        step: What the kernels read; it points into the arrays here.
    """

    sequences: "array[int]"
    positions: "array[int]"
    step: Step
    _kept: "tuple[array[int], ...]" = field(repr=False)

    @classmethod
    def of(
        cls,
        spans: Iterable[tuple[int, int]],
        tables: Sequence[Sequence[Sequence[int]]],
        *,
        rings: Sequence[int | None],
        block_size: int,
    ) -> "PagedRows":
        """Lay out a step.

        Args:
            spans: For each sequence its first position and how many rows it has.
            tables: For each group of layers and each sequence its blocks, as far as its rows reach.
            rings: For each group the length of its ring in blocks, or None.
            block_size: Positions per block.
        """
        sequences, positions = array("i"), array("i")
        count = 0
        for start, rows in spans:
            if rows == 1:
                sequences.append(count)
                positions.append(start)
            else:
                sequences.extend([count] * rows)
                positions.extend(range(start, start + rows))
            count += 1
        blocks, starts = array("i"), array("q")
        for group in tables:
            for table in group:
                starts.append(len(blocks))
                blocks.extend(table)
        ring_lengths = array("i", [ring or 0 for ring in rings])
        kept = (blocks, starts, ring_lengths)
        addresses = (each.buffer_info()[0] for each in (sequences, positions, *kept))
        return cls(sequences, positions, Step(len(positions), count, block_size, *addresses), kept)


def pages_of(keys: Tensor, values: Tensor) -> Pages:
    """One plane: keys [slots, heads, key dim] and values [slots, heads, value dim], contiguous bfloat16."""
    for plane in (keys, values):
        if plane.dtype != torch.bfloat16 or not plane.is_contiguous():
            raise ValueError(f"a plane of {plane.dtype}, strides {plane.stride()}, can't be read")
    return Pages(keys.data_ptr(), values.data_ptr(), keys.shape[1], keys.shape[2], values.shape[2])


def attend_paged(
    rows: PagedRows, reach: Reach, pages: Pages, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Store the rows' keys and values, and attend.

    Args:
        rows: The step.
        reach: How the layer attends.
        pages: The layer's plane.
        query: [rows, query heads, key dim].
        key: [rows, key heads, key dim].
        value: [rows, key heads, value dim].

    Returns:
        [rows, query heads, value dim].
    """
    count, heads = rows.step.rows, query.shape[1]
    wanted = (
        (count, heads, pages.key_dim),
        (count, pages.heads, pages.key_dim),
        (count, pages.heads, pages.value_dim),
    )
    given = tuple(part.contiguous() for part in (query, key, value))
    for part, shape in zip(given, wanted, strict=True):
        if part.shape != shape or part.dtype != torch.bfloat16:
            raise ValueError(f"{tuple(part.shape)} {part.dtype} where {shape} bfloat16 are wanted")
    if heads % pages.heads:
        raise ValueError(f"{heads} query heads can't share {pages.heads} key heads")
    out = query.new_empty((count, heads, pages.value_dim))
    open_library().seedance_attend(
        threads_handle(),
        *(ctypes.addressof(each) for each in (rows.step, reach, pages)),
        heads,
        *(part.data_ptr() for part in (*given, out)),
    )
    return out
