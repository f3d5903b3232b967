"""How the rows of a part lie in memory, in the few numbers that a kernel is compiled for.

A kernel reads memory by addresses and not through views, so it has to be told strides. Parts with the same numbers,
such as K of all layers, are gone over in one launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvwitness.gpu_tracer.content.layout import Part
from kvwitness.gpu_tracer.content.reference import WORD


@dataclass(frozen=True)
class Geometry:
    """Where the bytes of a cell are, from the address of its part on. All strides are in units."""

    unit: int
    """Bytes that are read at a time: 8, where every address is a multiple of that and rows have no gaps, else less."""
    aligned: bool
    """Whether every row begins at a multiple of 16 bytes and has no gaps, so that two words can be read at once."""
    pages: int
    page: int
    """Stride from page to page."""
    slots: int
    """In a page."""
    slot: int
    """Stride from slot to slot."""
    heads: int
    """Rows of a slot; heads that lie one after another, in whole words, are one."""
    head: int
    """Stride from row to row."""
    units: int
    """In a row."""
    step: int
    """Stride from unit to unit in a row."""

    @property
    def words(self) -> int:
        """Words of 64 bits in a row, the last filled up with zeros."""
        return -(-self.units * self.unit // WORD)


def geometry(part: Part) -> Geometry | None:
    """That of a part; None where a head does not lie at even distances, so that no one stride describes it."""
    data, size = part.data, part.data.element_size()
    inner = _one_stride(tuple(data.shape[3:]), tuple(data.stride()[3:]))
    if inner is None or part.head_bytes == 0:
        return None
    count, step = inner
    # a dimension of one is never stepped over, so its stride says nothing
    page, slot, head = (
        stride * size if extent > 1 else 0 for stride, extent in zip(data.stride()[:3], data.shape[:3], strict=True)
    )
    heads, row = int(data.shape[2]), count * size
    dense = step == 1
    if dense and heads > 1 and head == row and row % WORD == 0:
        heads, row, head = 1, row * heads, 0
    unit = math.gcd(WORD, data.data_ptr(), page, slot, head, row) if dense else size
    return Geometry(
        unit=unit,
        aligned=dense and math.gcd(16, data.data_ptr(), page, slot, head) == 16,
        pages=int(data.shape[0]),
        page=page // unit,
        slots=int(data.shape[1]),
        slot=slot // unit,
        heads=heads,
        head=head // unit,
        units=row // unit,
        step=1 if dense else step,
    )


def _one_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Elements, and the stride between them, of dimensions that are one evenly spaced row."""
    count, step = 1, 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if count == 1:
            count, step = extent, stride
        elif stride == count * step:
            count *= extent
        else:
            return None
    return count, step
