"""What a field and an event kind of the trace are. Standard library only: the page tracer imports it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """How a field looks in JSON; the Arrow, Polars and DuckDB types follow from it."""

    TIME = "time"
    """Seconds since the Unix epoch as a decimal, or an integer of nanoseconds where it is 1e12 or more."""
    TEXT = "string"
    NAME = "string or integer"
    """An identifier of somebody else's making; integers are kept as their decimal digits."""
    INT = "integer"
    INT32 = "integer (32 bit)"
    NUMBER = "number"
    BOOL = "boolean"
    PAGES = "pages"
    """A list whose items are a page id or an inclusive range `[first, last]`; stored expanded, order kept."""
    SPAN = "[first, end)"
    """A pair of integers, half open; stored as two columns."""
    INTS = "integers"
    """A list of integers, or one integer for a list of one."""
    TEXTS = "strings"
    OBJECT = "object"
    """A JSON object; stored as canonical JSON text (sorted keys, no spaces)."""


ARROW_NAMES: dict[Form, str] = {
    Form.TIME: "int64",
    Form.TEXT: "string",
    Form.NAME: "string",
    Form.INT: "int64",
    Form.INT32: "int32",
    Form.NUMBER: "double",
    Form.BOOL: "bool",
    Form.PAGES: "list<uint32>",
    Form.SPAN: "int64",
    Form.INTS: "list<int64>",
    Form.TEXTS: "list<string>",
    Form.OBJECT: "string",
}
"""Form -> name of the Arrow type of its column or columns."""


@dataclass(frozen=True)
class Field:
    """One field of the trace: its name in JSON, its columns in tables, and what it means."""

    name: str
    form: Form
    meaning: str
    unit: str = ""
    columns: tuple[str, ...] = ()
    """Column names where they differ from `name` (a span has two)."""
    minimum: int | None = None
    """Least allowed number; None: any."""
    free_text: bool = False
    """Written by people or programs at will: held to a length, because content could hide in it."""
    alias: str | None = None
    """A second JSON name that is read as this field."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that hold this field."""
        return self.columns or (self.name,)

    @property
    def arrow_name(self) -> str:
        """Name of the Arrow type of each of its columns."""
        return ARROW_NAMES[self.form]


@dataclass(frozen=True)
class Kind:
    """One kind of event: what it says and which fields it has besides the common ones."""

    name: str
    meaning: str
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    """At least one of these must be there."""
    optional: tuple[str, ...] = ()
    parallel: tuple[tuple[str, str], ...] = ()
    """Pairs (list, pages): where both are there the list has one item per expanded page."""
    loose: tuple[str, ...] = ()
    """Fields of its own that have no column and no fixed form: they stand in `extra`."""
