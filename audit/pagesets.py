"""Unions of page lists, for tens of millions of entries; and how a set of pages is told to a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from kvwitness.audit.trace import compress_pages

AT_ONCE = 1 << 18
"""About so many entries are sorted at a time."""


def union_pages(groups: pl.Series, pages: pl.Series, gens: pl.Series) -> pl.DataFrame:
    """The pages of each group once, in ascending order, each with the highest generation seen.

    `groups` are small non-negative numbers, `pages` and `gens` parallel lists, one per row; an empty or null `gens`
    list stands for unknown generations. Returns `group`, `pages`, `gens` (parallel; empty where none is known).
    """
    numbers = groups.to_numpy().astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    done = np.cumsum(pages.list.len().fill_null(0).to_numpy().astype(np.int64)[order])
    unions, start = [_union(groups.head(0), pages.head(0), gens.head(0))], 0
    while start < len(order):
        far = int(np.searchsorted(done, (done[start - 1] if start else 0) + AT_ONCE, side="right"))
        last = numbers[order[min(max(far, start + 1), len(order)) - 1]]
        end = int(np.searchsorted(numbers, last, side="right", sorter=order))
        rows = order[start:end]
        unions.append(_union(groups[rows], pages[rows], gens[rows]))
        start = end
    return pl.concat(unions)


def _union(groups: pl.Series, pages: pl.Series, gens: pl.Series) -> pl.DataFrame:
    """`union_pages` of rows that have all of their groups."""
    lengths = pages.list.len().fill_null(0).to_numpy().astype(np.int64)
    owner = np.repeat(groups.to_numpy().astype(np.int64), lengths)
    page = _flat(pages).astype(np.int64)
    known = gens.list.len().fill_null(0).to_numpy().astype(np.int64) == lengths
    gen = np.full(len(page), -1, np.int64)
    gen[np.repeat(known, lengths)] = _flat(gens.filter(pl.Series(known))).astype(np.int64)
    key = owner << 32 | page
    order = np.argsort(key, kind="stable")
    key, gen = key[order], gen[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1)) if len(key) else np.zeros(0, np.int64)
    highest = np.maximum.reduceat(gen, starts) if len(starts) else gen
    found, counts = np.unique(key[starts] >> 32, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    numbers = (key[starts] & 0xFFFFFFFF).astype(np.uint32)
    return pl.DataFrame(
        {
            "group": found,
            "pages": pl.Series(pa.LargeListArray.from_arrays(offsets, pa.array(numbers))),
            "gens": pl.Series(pa.LargeListArray.from_arrays(offsets, pa.array(highest, mask=highest < 0))),
        },
        schema_overrides={"group": pl.Int64},
    ).with_columns(pl.col("gens").list.drop_nulls())


def in_ranges(pages: Sequence[int], gens: Iterable[int | None]) -> dict[str, Any]:
    """`pages` as numbers and inclusive `[first, last]`, and `gens`: which generations occur among them.

    Whatever tells a program of findings or incidents tells their pages so: there can be ten thousand.
    """
    return {"pages": compress_pages(pages), "gens": sorted({gen for gen in gens if gen is not None})}


def _flat(lists: pl.Series) -> np.ndarray:
    array = lists.to_arrow()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    values: np.ndarray = array.flatten().to_numpy(zero_copy_only=False)
    return values
