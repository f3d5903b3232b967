"""The kernel's tables, in the two forms in which it runs.

Compiled, a table is a numpy array of records. Interpreted, it is a list of small objects with the same attributes,
because reading a numpy record from Python is slow. The kernel's source is the same for both.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

LINE = 64  # bytes of a cache line


@cache
def row_class(dtype: np.dtype[np.void]) -> type:
    """A class with the fields of a record as attributes."""
    names = dtype.names or ()
    body = "".join(f"        self.{name} = 0\n" for name in names)
    scope: dict[str, Any] = {}
    exec(f"class Row:\n    __slots__ = {names!r}\n    def __init__(self):\n{body}", scope)
    made: type = scope["Row"]
    return made


class Tables:
    """Makes, grows and reads tables; `compiled` says for which form."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled

    def make(self, dtype: np.dtype[np.void], n: int, fills: dict[str, int] | None = None) -> Any:
        """A table of n records, zero but for `fills`."""
        if self.compiled:
            raw = np.zeros(n * dtype.itemsize + LINE, np.uint8)
            start = -raw.ctypes.data % LINE
            array = raw[start : start + n * dtype.itemsize].view(dtype)
            for name, value in (fills or {}).items():
                array[name] = value
            return array
        make = row_class(dtype)
        rows = [make() for _ in range(n)]
        for name, value in (fills or {}).items():
            for row in rows:
                setattr(row, name, value)
        return rows

    def from_columns(self, dtype: np.dtype[np.void], columns: dict[str, npt.NDArray[Any]], n: int) -> Any:
        """A table of n records from columns; fields without one are -1."""
        if self.compiled:
            table = self.make(dtype, n)
            for name in dtype.names or ():
                table[name] = columns.get(name, -1)
            return table
        table = self.make(dtype, n, {name: -1 for name in dtype.names or () if name not in columns})
        for name, column in columns.items():
            for row, value in zip(table, column.tolist(), strict=True):
                setattr(row, name, value)
        return table

    def columns(self, dtype: np.dtype[np.void], columns: dict[str, npt.NDArray[np.int64]], n: int) -> Any:
        """A table of `layout.COLUMNS`: compiled, its columns as they are; interpreted, like any other."""
        if self.compiled:
            return {name: np.ascontiguousarray(columns[name], np.int64) for name in dtype.names or ()}
        return self.from_columns(dtype, columns, n)

    def column(self, table: Any, name: str, n: int | None = None) -> npt.NDArray[np.int64]:
        """One field of the first n records."""
        if self.compiled:
            values: npt.NDArray[np.int64] = table[name][: len(table) if n is None else n].astype(np.int64)
            return values
        return np.array([getattr(row, name) for row in (table if n is None else table[:n])], np.int64)

    def kept(self, table: Any, name: str, n: int) -> npt.NDArray[Any]:
        """The same in as many bytes as the record gives it, if it has any."""
        return np.ascontiguousarray(table[name][:n]) if self.compiled else self.column(table, name, n)

    def put(self, table: Any, row: int, **values: int) -> None:
        """Set fields of one record."""
        for name, value in values.items():
            if self.compiled:
                table[name][row] = value
            else:
                setattr(table[row], name, value)

    def flat(self, values: npt.NDArray[Any]) -> Any:
        """A plain array as the kernel indexes it."""
        return values if self.compiled else values.tolist()
