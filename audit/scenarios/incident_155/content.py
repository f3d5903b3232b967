"""Whose content every decode page holds, position by position: the source of the ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvwitness.audit.scenarios.incident_155.deployment import PAGE_TOKENS
from kvwitness.audit.scenarios.incident_155.pool import Table, covering

Extent = tuple[int, int, int]
"""(first row, end row, writer): rows of one page that one request wrote."""

_NOBODY, _SEVERAL = -1, -2


@dataclass(frozen=True)
class Exposure:
    """What a read met besides the reader's own tenant's content."""

    tenants: tuple[str, ...]
    """The other tenants, sorted."""
    requests: int
    """How many of their requests."""
    tokens: int
    """Positions that held their content."""
    pages: Table
    """Pages with at least one such position, rising."""
    never_written: int
    """Positions that nobody had written."""


class PageContent:
    """The last writer of every row of every page, for as long as nobody overwrites it.

    Most pages hold one writer's rows from end to end; those stand in one array. The few with several writers
    stand beside it, row range by row range.
    """

    def __init__(self, pages: int, tenant_of: Sequence[str]) -> None:
        """`tenant_of`: the tenant of each request, by the index that `wrote` and `met` are given."""
        self._whole = np.full(pages, _NOBODY, np.int32)
        self._mixed: dict[int, list[Extent]] = {}
        self._tenant_of = tenant_of
        codes = {tenant: code for code, tenant in enumerate(dict.fromkeys(tenant_of))}
        self._tenant_code = np.array([codes[tenant] for tenant in tenant_of], np.int32)

    def wrote(self, table: Table, first: int, end: int, writer: int) -> None:
        """Request `writer` has completely written its positions first..end-1; `table` is its whole page
        table."""
        position = first - first % PAGE_TOKENS
        for low, high in covering(table, first, end):
            pages_end = position + (high - low + 1) * PAGE_TOKENS
            whole_low, whole_end = low, high + 1
            if position < first:
                self._wrote_rows(low, first - position, min(PAGE_TOKENS, end - position), writer)
                whole_low += 1
            if pages_end > end and whole_low < whole_end:
                whole_end -= 1
                self._wrote_rows(high, 0, PAGE_TOKENS - (pages_end - end), writer)
            self._whole[whole_low:whole_end] = writer
            position = pages_end

    def met(self, table: Table, length: int, reader: int) -> Exposure:
        """What a read of positions 0..length-1 by request `reader` meets."""
        pages = np.concatenate([np.arange(low, high + 1) for low, high in covering(table, 0, length)])
        whole = self._whole[pages]
        last_rows = length - (len(pages) - 1) * PAGE_TOKENS
        simple = whole != _SEVERAL
        simple[-1] &= last_rows == PAGE_TOKENS
        own = self._tenant_code[reader]
        foreign = simple & (whole >= 0) & (self._tenant_code[whole] != own)
        writers = set(np.unique(whole[foreign]).tolist())
        total = int(foreign.sum()) * PAGE_TOKENS
        unwritten = int((simple & (whole == _NOBODY)).sum()) * PAGE_TOKENS
        for n in np.flatnonzero(~simple).tolist():
            rows = last_rows if n == len(pages) - 1 else PAGE_TOKENS
            by_writer, known = self._rows(int(pages[n]), rows)
            others = {w: count for w, count in by_writer.items() if self._tenant_code[w] != own}
            writers.update(others)
            total += sum(others.values())
            foreign[n] = bool(others)
            unwritten += rows - known
        return Exposure(
            tenants=tuple(sorted({self._tenant_of[w] for w in writers})),
            requests=len(writers),
            tokens=total,
            pages=_ranges(np.sort(pages[foreign])),
            never_written=unwritten,
        )

    def _extents(self, page: int) -> list[Extent]:
        writer = int(self._whole[page])
        if writer == _SEVERAL:
            return self._mixed[page]
        return [] if writer == _NOBODY else [(0, PAGE_TOKENS, writer)]

    def _wrote_rows(self, page: int, low: int, high: int, writer: int) -> None:
        kept: list[Extent] = []
        for first, end, who in self._extents(page):
            if first < low:
                kept.append((first, min(end, low), who))
            if end > high:
                kept.append((max(first, high), end, who))
        self._mixed[page] = sorted([*kept, (low, high, writer)])
        self._whole[page] = _SEVERAL

    def _rows(self, page: int, rows: int) -> tuple[dict[int, int], int]:
        """Rows by writer among the first `rows` of a page, and how many of them anybody wrote."""
        by_writer: dict[int, int] = {}
        for first, end, writer in self._extents(page):
            count = min(end, rows) - first
            if count > 0:
                by_writer[writer] = by_writer.get(writer, 0) + count
        return by_writer, sum(by_writer.values())


def _ranges(pages: npt.NDArray[np.int64]) -> Table:
    """Rising page ids as inclusive ranges."""
    if not len(pages):
        return []
    breaks = np.flatnonzero(np.diff(pages) != 1)
    firsts = pages[np.concatenate(([0], breaks + 1))]
    lasts = pages[np.concatenate((breaks, [len(pages) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
