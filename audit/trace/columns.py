"""Column builders: values go in line by line, Arrow arrays come out per batch.

Each builder keeps only the rows that have a value. `put(row, value)` checks the value's type and raises `Rejected`;
`undo(row)` takes the row's value back when its line is rejected later on.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import chain
from math import isfinite
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from kvwitness.audit.trace.model import Field, Form
from kvwitness.audit.trace.pages import expand_ranges, page_ranges

MAX_DIGEST = 256
"""Longest fingerprint in a list of fingerprints, in characters."""
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class Rejected(Exception):
    """A line gives no event; the reason quotes no value."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class Column(Protocol):
    """What all builders have in common."""

    put: Callable[[int, Any], None]

    def undo(self, row: int) -> None:
        """Take back the value of `row`, if it has one."""

    def finish(self, rows: int) -> list[pa.Array]:
        """The arrays of `rows` rows, one per table column; the builder is empty afterwards."""


def _scatter(values: pa.Array, rows: array[int], total: int) -> pa.Array:
    """Place values at their rows, null elsewhere."""
    if len(values) == total:
        return values
    if not len(values):
        return pa.nulls(total, values.type)
    index = np.zeros(total, dtype=np.int32)
    missing = np.ones(total, dtype=np.bool_)
    at = np.array(rows)
    index[at] = np.arange(len(at), dtype=np.int32)
    missing[at] = False
    return values.take(pa.array(index, mask=missing))


class TextColumn:
    """Strings; with `names`, integers too, kept as their digits. `clean` sees the distinct values of a batch."""

    def __init__(
        self, name: str, names: bool = False, clean: Callable[[pa.Array], pa.Array] | None = None
    ) -> None:
        self.rows, self.values = array("q"), list[str]()
        self._clean = clean
        add_row, add_value = self.rows.append, self.values.append

        def put(row: int, value: Any) -> None:
            if type(value) is not str:
                if not names or type(value) is not int:
                    raise Rejected(f"{name}: not a string")
                value = str(value)
            add_row(row)
            add_value(value)

        self.put: Callable[[int, Any], None] = put

    def undo(self, row: int) -> None:
        if self.rows and self.rows[-1] == row:
            self.rows.pop()
            self.values.pop()

    def finish(self, rows: int) -> list[pa.Array]:
        values = pa.array(self.values, pa.string())
        if self._clean is not None and len(values):
            values = self._clean(values)
        out = _scatter(values, self.rows, rows)
        self.values.clear()
        del self.rows[:]
        return [out]


class NumberColumn:
    """Integers of 32 or 64 bits, booleans or finite floats."""

    def __init__(self, name: str, form: Form, minimum: int | None) -> None:
        self.rows = array("q")
        self._type = {Form.INT: pa.int64(), Form.INT32: pa.int32(), Form.NUMBER: pa.float64()}.get(
            form, pa.bool_()
        )
        self.values: list[Any] = []
        self.put: Callable[[int, Any], None] = {
            Form.INT: self._integer(name, minimum, _INT64_MIN, _INT64_MAX),
            Form.INT32: self._integer(name, minimum, -(2**31), 2**31 - 1),
            Form.NUMBER: self._number(name, minimum),
        }.get(form, self._boolean(name))

    def _integer(self, name: str, minimum: int | None, low: int, high: int) -> Callable[[int, Any], None]:
        least = low if minimum is None else minimum
        add_row, add_value = self.rows.append, self.values.append

        def put(row: int, value: Any) -> None:
            if type(value) is not int:
                raise Rejected(f"{name}: not an integer")
            if not least <= value <= high:
                raise Rejected(f"{name}: out of range")
            add_row(row)
            add_value(value)

        return put

    def _number(self, name: str, minimum: int | None) -> Callable[[int, Any], None]:
        def put(row: int, value: Any) -> None:
            if type(value) is not float and type(value) is not int:
                raise Rejected(f"{name}: not a number")
            if not isfinite(value) or (minimum is not None and value < minimum):
                raise Rejected(f"{name}: out of range")
            self.rows.append(row)
            self.values.append(float(value))

        return put

    def _boolean(self, name: str) -> Callable[[int, Any], None]:
        def put(row: int, value: Any) -> None:
            if type(value) is not bool:
                raise Rejected(f"{name}: not a boolean")
            self.rows.append(row)
            self.values.append(value)

        return put

    def undo(self, row: int) -> None:
        if self.rows and self.rows[-1] == row:
            self.rows.pop()
            self.values.pop()

    def finish(self, rows: int) -> list[pa.Array]:
        out = _scatter(pa.array(self.values, self._type), self.rows, rows)
        self.values.clear()
        del self.rows[:]
        return [out]


class SpanColumn:
    """`[first, end)` pairs; two int64 columns."""

    def __init__(self, name: str, minimum: int) -> None:
        self.rows, self.first, self.end = array("q"), array("q"), array("q")

        def put(row: int, value: Any) -> None:
            if type(value) is not list or len(value) != 2:
                raise Rejected(f"{name}: not a pair of integers")
            first, end = value
            if type(first) is not int or type(end) is not int:
                raise Rejected(f"{name}: not a pair of integers")
            if first > end:
                raise Rejected(f"{name}: reversed")
            if first < minimum or end > _INT64_MAX:
                raise Rejected(f"{name}: out of range")
            self.rows.append(row)
            self.first.append(first)
            self.end.append(end)

        self.put: Callable[[int, Any], None] = put

    def undo(self, row: int) -> None:
        if self.rows and self.rows[-1] == row:
            self.rows.pop()
            self.first.pop()
            self.end.pop()

    def finish(self, rows: int) -> list[pa.Array]:
        out = [_scatter(pa.array(np.array(x)), self.rows, rows) for x in (self.first, self.end)]
        for x in (self.rows, self.first, self.end):
            del x[:]
        return out


def _lists(counts: array[int], values: pa.Array, rows: array[int], total: int) -> pa.Array:
    """A list array with `counts[i]` of the flat `values` at row `rows[i]`, null elsewhere."""
    if not len(rows):
        return pa.nulls(total, pa.list_(values.type))
    at = np.array(rows)
    lengths = np.zeros(total, dtype=np.int64)
    lengths[at] = np.array(counts)
    missing = np.ones(total, dtype=np.bool_)
    missing[at] = False
    offsets = np.zeros(total + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = pa.array(missing) if len(rows) < total else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


class PagesColumn:
    """Page lists. Ranges are kept as ranges until the batch is built, then expanded at once."""

    def __init__(self, name: str, weigh: Callable[[int], None]) -> None:
        self.rows, self.counts, self.sizes = array("q"), array("q"), array("q")
        self.starts, self.ends = array("I"), array("I")

        def put(row: int, value: Any) -> None:
            if type(value) is not list:
                raise Rejected(f"{name}: not a list of pages")
            try:
                starts, ends, size = page_ranges(value)
            except ValueError as error:
                raise Rejected(f"{name}: {error}") from None
            self.rows.append(row)
            self.counts.append(len(starts))
            self.sizes.append(size)
            self.starts.extend(starts)
            self.ends.extend(ends)
            weigh(4 * size)

        self.put: Callable[[int, Any], None] = put

    def undo(self, row: int) -> None:
        if self.rows and self.rows[-1] == row:
            self.rows.pop()
            self.sizes.pop()
            keep = len(self.starts) - self.counts.pop()
            del self.starts[keep:], self.ends[keep:]

    def finish(self, rows: int) -> list[pa.Array]:
        flat = expand_ranges(np.array(self.starts, dtype=np.uint32), np.array(self.ends, dtype=np.uint32))
        out = _lists(self.sizes, pa.array(flat), self.rows, rows)
        for x in (self.rows, self.counts, self.sizes, self.starts, self.ends):
            del x[:]
        return [out]


class ListColumn:
    """Lists of integers (or one integer for a list of one), or lists of strings."""

    def __init__(self, name: str, form: Form, minimum: int | None) -> None:
        self.rows = array("q")
        self.items: list[list[Any]] = []
        self._type = pa.int64() if form is Form.INTS else pa.string()
        least = _INT64_MIN if minimum is None else minimum

        def integers(row: int, value: Any) -> None:
            items = [value] if type(value) is int else value
            if type(items) is not list or not set(map(type, items)) <= {int}:
                raise Rejected(f"{name}: not a list of integers")
            if items and (min(items) < least or max(items) > _INT64_MAX):
                raise Rejected(f"{name}: out of range")
            self.rows.append(row)
            self.items.append(items)

        def strings(row: int, value: Any) -> None:
            if type(value) is not list or not set(map(type, value)) <= {str}:
                raise Rejected(f"{name}: not a list of strings")
            if value and max(map(len, value)) > MAX_DIGEST:
                raise Rejected(f"{name}: an item is longer than {MAX_DIGEST} characters")
            self.rows.append(row)
            self.items.append(value)

        self.put: Callable[[int, Any], None] = integers if form is Form.INTS else strings

    def undo(self, row: int) -> None:
        if self.rows and self.rows[-1] == row:
            self.rows.pop()
            self.items.pop()

    def finish(self, rows: int) -> list[pa.Array]:
        flat = pa.array(list(chain.from_iterable(self.items)), self._type)
        out = _lists(array("q", map(len, self.items)), flat, self.rows, rows)
        self.items.clear()
        del self.rows[:]
        return [out]


def column_for(
    field: Field, weigh: Callable[[int], None], clean: Callable[[pa.Array], pa.Array] | None
) -> Column:
    """The builder for a field. `weigh` is told how many bytes a value unfolds to."""
    match field.form:
        case Form.TEXT | Form.NAME:
            return TextColumn(field.name, field.form is Form.NAME, clean)
        case Form.SPAN:
            return SpanColumn(field.name, field.minimum or 0)
        case Form.PAGES:
            return PagesColumn(field.name, weigh)
        case Form.INTS | Form.TEXTS:
            return ListColumn(field.name, field.form, field.minimum)
        case _:
            return NumberColumn(field.name, field.form, field.minimum)
