"""Page lists: ranges, as people and JSON write them, and flat ids, as tables hold them. numpy only."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from operator import gt
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_PAGE = 2**32 - 1
"""Largest page id."""
MAX_LIST = 2**24
"""Most page ids that one list may name when expanded; more is a mistake or an attack, not a pool."""

U32 = npt.NDArray[np.uint32]
_FEW = 8
_INT = {int}
_LIST = {list}
_INT_LIST = {int, list}
_NOT_AN_ITEM = "an item is neither a page id nor a [first, last] range"
_NOT_A_PAIR = "a range is not a pair of page ids"
_REVERSED = "a range is reversed"
_OUTSIDE = "page id outside 0..2**32-1"


def page_ranges(items: Sequence[Any]) -> tuple[array[int], array[int], int]:
    """Check a page list and split it into range starts, inclusive range ends and the number of pages named.

    Raises ValueError, with a reason that quotes no value, where an item is neither an id nor a
    `[first, last]` pair, an id is outside 0..2**32-1, a range is reversed or the list names more than
    `MAX_LIST` pages.
    """
    starts, ends = array("I"), array("I")
    total = _few(items, starts, ends) if len(items) <= _FEW else _many(items, starts, ends)
    if total > MAX_LIST:
        raise ValueError(f"more than {MAX_LIST} pages in one list")
    return starts, ends, total


def page_array(ids: npt.NDArray[Any]) -> tuple[array[int], array[int], int]:
    """As `page_ranges`, for an array of integers of one dimension with one item per page."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(_NOT_AN_ITEM)
    if len(ids) > MAX_LIST:
        raise ValueError(f"more than {MAX_LIST} pages in one list")
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > MAX_PAGE):
        raise ValueError(_OUTSIDE)
    flat = array("I", ids.astype(np.uint32).tobytes())
    return flat, flat, len(flat)


def _few(items: Sequence[Any], starts: array[int], ends: array[int]) -> int:
    """A short list, item by item."""
    total = 0
    for item in items:
        if type(item) is int:
            first = last = item
        elif type(item) is list and len(item) == 2:
            first, last = item
            if type(first) is not int or type(last) is not int:
                raise ValueError(_NOT_A_PAIR)
            if first > last:
                raise ValueError(_REVERSED)
        else:
            raise ValueError(_NOT_A_PAIR if type(item) is list else _NOT_AN_ITEM)
        if first < 0 or last > MAX_PAGE:
            raise ValueError(_OUTSIDE)
        starts.append(first)
        ends.append(last)
        total += last - first + 1
    return total


def _many(items: Sequence[Any], starts: array[int], ends: array[int]) -> int:
    """A long list, in a few passes that do not come back to Python for each item."""
    kinds = set(map(type, items))
    if not kinds <= _INT_LIST:
        raise ValueError(_NOT_AN_ITEM)
    first = last = items
    if kinds != _INT:
        pairs = items if kinds == _LIST else [x if type(x) is list else (x, x) for x in items]
        flat = list(chain.from_iterable(pairs))
        if set(map(len, pairs)) != {2} or set(map(type, flat)) != _INT:
            raise ValueError(_NOT_A_PAIR)
        first, last = flat[::2], flat[1::2]
        if any(map(gt, first, last)):
            raise ValueError(_REVERSED)
    if min(first) < 0 or max(last) > MAX_PAGE:
        raise ValueError(_OUTSIDE)
    starts.extend(first)
    ends.extend(last)
    total: int = sum(last) - sum(first) + len(first)
    return total


def expand_ranges(starts: U32, ends: U32) -> U32:
    """Flat ids of inclusive ranges given as two parallel arrays, in order."""
    lengths = ends.astype(np.int64) - starts + 1
    total = int(lengths.sum())
    if total == len(starts):
        return starts.copy()
    before = np.cumsum(lengths) - lengths
    # ids = start + (position - pages before this range), in wrapping 32-bit arithmetic to spare memory
    shift = starts - before.astype(np.uint32)
    flat = np.repeat(shift, lengths)
    flat += np.arange(total, dtype=np.uint32)
    return flat


def expand_pages(items: Sequence[Any]) -> U32:
    """`[[14, 16], 50]` -> `[14, 15, 16, 50]` as uint32, order kept. Raises ValueError on a malformed list."""
    starts, ends, _ = page_ranges(items)
    return expand_ranges(np.array(starts, dtype=np.uint32), np.array(ends, dtype=np.uint32))


def compress_pages(pages: Sequence[int] | U32) -> list[int | list[int]]:
    """`[14, 15, 16, 50]` -> `[[14, 16], 50]`: runs of ids that rise by one become ranges, order kept.

    Raises ValueError where an id is outside 0..2**32-1.
    """
    wide = np.asarray(pages, dtype=np.int64)
    if wide.size == 0:
        return []
    if int(wide.min()) < 0 or int(wide.max()) > MAX_PAGE:
        raise ValueError(_OUTSIDE)
    cuts = np.flatnonzero(np.diff(wide) != 1)
    first = wide[np.concatenate(([0], cuts + 1))].tolist()
    last = wide[np.concatenate((cuts, [wide.size - 1]))].tolist()
    return [a if a == b else [a, b] for a, b in zip(first, last, strict=True)]
