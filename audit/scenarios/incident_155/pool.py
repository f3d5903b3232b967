"""Page tables and the allocator that fills them.

A table is a list of inclusive page ranges in the order of token positions: `[(14, 44), (50, 50)]`.
"""

from __future__ import annotations

from kvwitness.audit.scenarios.incident_155.deployment import PAGE_TOKENS, pages_for

Span = tuple[int, int]
Table = list[Span]


class PagePool:
    """Next-fit allocator over the page ids 1..total-1; page 0 is reserved."""

    def __init__(self, total: int) -> None:
        self._free = bytearray(b"\x01") * total
        self._free[0] = 0
        self._total = total
        self._cursor = 1
        self.available = total - 1

    def take(self, count: int) -> Table:
        """Allocate `count` pages, which must be available."""
        if count > self.available:
            raise ValueError(f"{count} pages wanted, {self.available} available")
        self.available -= count
        table: Table = []
        while count:
            first = self._free.find(1, self._cursor)
            if first < 0:
                self._cursor = 1
                continue
            end = self._free.find(0, first)
            end = self._total if end < 0 else end
            end = min(end, first + count)
            self._free[first:end] = bytes(end - first)
            if table and table[-1][1] + 1 == first:
                table[-1] = (table[-1][0], end - 1)
            else:
                table.append((first, end - 1))
            self._cursor = end
            count -= end - first
        return table

    def give(self, table: Table) -> None:
        """Release the pages of a table."""
        for first, last in table:
            self._free[first : last + 1] = b"\x01" * (last - first + 1)
            self.available += last - first + 1


def cut(table: Table, low: int, high: int) -> Table:
    """The part of a table that holds its pages number low..high-1."""
    part: Table = []
    number = 0
    for first, last in table:
        count = last - first + 1
        begin, end = max(low, number), min(high, number + count)
        if begin < end:
            part.append((first + begin - number, first + end - number - 1))
        number += count
    return part


def covering(table: Table, first: int, end: int) -> Table:
    """The part of a table that holds the token positions first..end-1."""
    return cut(table, first // PAGE_TOKENS, pages_for(end))
