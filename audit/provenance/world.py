"""All that the kernel knows, as one object: the tables and lists of `kernel.layout`, each under its name.

Compiled code gets the address of a directory of the tables, so that a call between kernel functions passes one
pointer, however many tables there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.tables import Tables

_COLUMNS = [f"{name}.{field}" for name, dtype in k.COLUMNS.items() for field in dtype.names or ()]

SLOTS = {name: 2 * n for n, name in enumerate((*k.TABLES, *k.LISTS, *_COLUMNS))}
"""Where in the directory the address of a table, a list or a column stands; its length comes next."""

_NONE = {
    "pages": ("owner", "next", "writer", "lgen", "lev", "origin", "step", "ord"),
    "cold": k.COLD.names or (),
    "pairs": ("pending0", "pending1", "share", "transfer", "read", "source"),
    "transfer_ids": ("head", "lease"),
}
"""Fields that are -1 in a fresh record."""


class World:
    """Tables as attributes. Interpreted, `count` is the record itself; everything else is indexed."""

    def __init__(self, compiled: bool) -> None:
        self.tables = Tables(compiled)
        self.put("count", self.tables.make(k.COUNTERS, 1))
        self.keys = np.full(64, -1, np.int64)
        self._directory = np.zeros(2 * len(SLOTS), np.int64)

    def make(self, name: str, n: int) -> None:
        """A fresh table of n records under this name."""
        setattr(self, name, self._fresh(name, n))

    def _fresh(self, name: str, n: int) -> Any:
        return self.tables.make(k.TABLES[name], n, dict.fromkeys(_NONE.get(name, ()), -1))

    def put(self, name: str, table: Any) -> None:
        """Take over a table that was made elsewhere."""
        if name == "count":
            self.counters = table
            table = table if self.tables.compiled else table[0]
        setattr(self, name, table)

    def grow(self, name: str, needed: int) -> None:
        """Make sure that the table has `needed` records, with some to spare if it has to grow."""
        table = getattr(self, name)
        if needed > len(table):
            grown = self._fresh(name, max(needed, 2 * len(table)))
            grown[: len(table)] = table
            setattr(self, name, grown)

    def used(self, name: str) -> int:
        """How many records of a table the kernel has filled."""
        counted = name in (k.COUNTERS.names or ()) and name != "steps"
        return self.counted(name) if counted else len(getattr(self, name))

    def counted(self, name: str) -> int:
        """One of the kernel's counters."""
        return int(self.tables.column(self.counters, name)[0])

    def set_counters(self, **values: int) -> None:
        """Change counters."""
        self.tables.put(self.counters, 0, **values)

    if TYPE_CHECKING:  # the tables of `kernel.layout`

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def _column(self, name: str) -> Any:
        table, field = name.split(".")
        return getattr(self, table)[field]

    @property
    def address(self) -> int:
        """Of the directory, brought up to date: valid until a table is replaced."""
        for name, slot in SLOTS.items():
            table = getattr(self, name) if name not in _COLUMNS else self._column(name)
            self._directory[slot] = table.ctypes.data
            self._directory[slot + 1] = len(table)
        return int(self._directory.ctypes.data)
