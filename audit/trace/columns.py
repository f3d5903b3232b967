"""Column builders: values go in line by line, Arrow arrays come out per batch.

Each builder keeps only the rows that have a value. `put(row, value)` checks the value's type and raises
`Rejected`; `undo(row)` takes the row's value back when its line is rejected later on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from kvwitness.audit.trace.model import Field, Form
from kvwitness.audit.trace.pages import expand_ranges, page_array, page_ranges

MAX_DIGEST = 256
"""Longest fingerprint in a list of fingerprints, in characters."""
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_Put = Callable[[int, Any], None]


class Rejected(Exception):
    """A line gives no event; the reason quotes no value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Column(ABC):
    """A builder; `stores` are its growing sequences, one item per value each."""

    put: _Put
    """Take in the value of a row; raises `Rejected`."""

    def __init__(self, *stores: array[int] | list[Any]) -> None:
        self.rows = array("q")
        self._stores = stores

    def undo(self, row: int) -> None:
        """Take back the value of `row`, if it has one."""
        if self.rows and self.rows[-1] == row:
            self.rows.pop()
            self._forget()

    def finish(self, rows: int) -> list[pa.Array]:
        """The arrays of `rows` rows, one per table column; the builder is empty afterwards."""
        out = self._arrays(rows)
        for store in (self.rows, *self._stores):
            del store[:]
        return out

    def _forget(self) -> None:
        for store in self._stores:
            store.pop()

    @abstractmethod
    def _arrays(self, rows: int) -> list[pa.Array]: ...


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


class TextColumn(Column):
    """Strings; with `names` integers too, kept as their digits. `clean` goes over the strings of a batch."""

    def __init__(self, name: str, names: bool = False, clean: Callable[[pa.Array], pa.Array] | None = None) -> None:
        self._values: list[str] = []
        super().__init__(self._values)
        self._clean = clean
        add_row, add_value = self.rows.append, self._values.append

        def put(row: int, value: Any) -> None:
            if type(value) is not str:
                if not names or type(value) is not int:
                    raise Rejected(f"{name}: not a string")
                value = str(value)
            add_row(row)
            add_value(value)

        self.put = put

    def _arrays(self, rows: int) -> list[pa.Array]:
        values = pa.array(self._values, pa.string())
        if self._clean is not None and len(values):
            values = self._clean(values)
        return [_scatter(values, self.rows, rows)]


class NumberColumn(Column):
    """Integers of 32 or 64 bits, booleans or finite floats."""

    def __init__(self, name: str, form: Form, minimum: int | None) -> None:
        self._values: list[Any] = []
        super().__init__(self._values)
        self._type, self.put = {
            Form.INT: (pa.int64(), self._integer(name, minimum, _INT64_MIN, _INT64_MAX)),
            Form.INT32: (pa.int32(), self._integer(name, minimum, -(2**31), 2**31 - 1)),
            Form.NUMBER: (pa.float64(), self._number(name, minimum)),
            Form.BOOL: (pa.bool_(), self._boolean(name)),
        }[form]

    def _integer(self, name: str, minimum: int | None, low: int, high: int) -> _Put:
        least = low if minimum is None else minimum
        add_row, add_value = self.rows.append, self._values.append

        def put(row: int, value: Any) -> None:
            if type(value) is not int:
                raise Rejected(f"{name}: not an integer")
            if not least <= value <= high:
                raise Rejected(f"{name}: out of range")
            add_row(row)
            add_value(value)

        return put

    def _number(self, name: str, minimum: int | None) -> _Put:
        def put(row: int, value: Any) -> None:
            if type(value) is not float and type(value) is not int:
                raise Rejected(f"{name}: not a number")
            if not isfinite(value) or (minimum is not None and value < minimum):
                raise Rejected(f"{name}: out of range")
            self.rows.append(row)
            self._values.append(float(value))

        return put

    def _boolean(self, name: str) -> _Put:
        def put(row: int, value: Any) -> None:
            if type(value) is not bool:
                raise Rejected(f"{name}: not a boolean")
            self.rows.append(row)
            self._values.append(value)

        return put

    def _arrays(self, rows: int) -> list[pa.Array]:
        return [_scatter(pa.array(self._values, self._type), self.rows, rows)]


class SpanColumn(Column):
    """`[first, end)` pairs; two int64 columns."""

    def __init__(self, name: str, minimum: int) -> None:
        self._first, self._end = array("q"), array("q")
        super().__init__(self._first, self._end)
        add_row, add_first, add_end = self.rows.append, self._first.append, self._end.append

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
            add_row(row)
            add_first(first)
            add_end(end)

        self.put = put

    def _arrays(self, rows: int) -> list[pa.Array]:
        return [_scatter(pa.array(np.array(x)), self.rows, rows) for x in (self._first, self._end)]


def _lists(counts: Iterable[int], values: pa.Array, rows: array[int], total: int) -> pa.Array:
    """A list array with the next of the flat `values`, as many as `counts` says, at each of `rows`."""
    if not len(rows):
        return pa.nulls(total, pa.list_(values.type))
    at = np.array(rows)
    lengths = np.zeros(total, dtype=np.int64)
    lengths[at] = np.fromiter(counts, dtype=np.int64, count=len(at))
    offsets = np.zeros(total + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    missing = np.ones(total, dtype=np.bool_)
    missing[at] = False
    mask = pa.array(missing) if len(at) < total else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


class PagesColumn(Column):
    """Page lists. Ranges are kept as ranges until the batch is built, then expanded at once."""

    def __init__(self, name: str, weigh: Callable[[int], None]) -> None:
        self._counts, self._sizes = array("q"), array("q")
        self._starts, self._ends = array("I"), array("I")
        super().__init__(self._counts, self._sizes, self._starts, self._ends)
        add_row, add_count, add_size = self.rows.append, self._counts.append, self._sizes.append
        add_starts, add_ends = self._starts.extend, self._ends.extend

        def put(row: int, value: Any) -> None:
            if type(value) is not list and type(value) is not np.ndarray:
                raise Rejected(f"{name}: not a list of pages")
            try:
                starts, ends, size = page_array(value) if isinstance(value, np.ndarray) else page_ranges(value)
            except ValueError as error:
                raise Rejected(f"{name}: {error}") from None
            add_row(row)
            add_count(len(starts))
            add_size(size)
            add_starts(starts)
            add_ends(ends)
            weigh(4 * size)

        self.put = put

    def _forget(self) -> None:
        self._sizes.pop()
        keep = len(self._starts) - self._counts.pop()
        del self._starts[keep:], self._ends[keep:]

    def _arrays(self, rows: int) -> list[pa.Array]:
        flat = expand_ranges(np.array(self._starts, np.uint32), np.array(self._ends, np.uint32))
        return [_lists(self._sizes, pa.array(flat), self.rows, rows)]


class ListColumn(Column):
    """Lists of integers (or one integer for a list of one), or lists of strings."""

    def __init__(self, name: str, form: Form, minimum: int | None) -> None:
        self._items: list[list[Any]] = []
        super().__init__(self._items)
        self._type = pa.int64() if form is Form.INTS else pa.string()
        least = _INT64_MIN if minimum is None else minimum

        def integers(row: int, value: Any) -> None:
            items = [value] if type(value) is int else value
            if type(items) is not list or not set(map(type, items)) <= {int}:
                raise Rejected(f"{name}: not a list of integers")
            if items and (min(items) < least or max(items) > _INT64_MAX):
                raise Rejected(f"{name}: out of range")
            self.rows.append(row)
            self._items.append(items)

        def strings(row: int, value: Any) -> None:
            if type(value) is not list or not set(map(type, value)) <= {str}:
                raise Rejected(f"{name}: not a list of strings")
            if value and max(map(len, value)) > MAX_DIGEST:
                raise Rejected(f"{name}: an item is longer than {MAX_DIGEST} characters")
            self.rows.append(row)
            self._items.append(value)

        self.put = integers if form is Form.INTS else strings

    def _arrays(self, rows: int) -> list[pa.Array]:
        flat = pa.array(list(chain.from_iterable(self._items)), self._type)
        return [_lists(map(len, self._items), flat, self.rows, rows)]


def column_for(field: Field, weigh: Callable[[int], None], clean: Callable[[pa.Array], pa.Array]) -> Column:
    """The builder for a field.

    `weigh` is told how many bytes a value unfolds to; `clean` goes over strings that are identifiers or free
    text. Times come in as nanoseconds and objects as JSON text, which the caller has cleaned.
    """
    match field.form:
        case Form.TEXT | Form.NAME:
            return TextColumn(field.name, field.form is Form.NAME, clean)
        case Form.OBJECT:
            return TextColumn(field.name)
        case Form.TIME:
            return NumberColumn(field.name, Form.INT, None)
        case Form.SPAN:
            return SpanColumn(field.name, field.minimum or 0)
        case Form.PAGES:
            return PagesColumn(field.name, weigh)
        case Form.INTS | Form.TEXTS:
            return ListColumn(field.name, field.form, field.minimum)
        case _:
            return NumberColumn(field.name, field.form, field.minimum)
