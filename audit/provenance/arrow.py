"""Events as Arrow tables in which texts are numbers into a dictionary: a column of few names is looked at name by name.

A column without any value may be absent from such a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Texts:
    """A column of texts: row i has `names[codes[i]]`. The last name is None, for rows without a text."""

    codes: npt.NDArray[np.int32]
    names: list[str | None]

    def mapped(self, values: Mapping[str, int], default: int) -> I64:
        """One number per row; `default` for names that have none, and for rows without a text."""
        table = np.array([default if name is None else values.get(name, default) for name in self.names], np.int64)
        return table[self.codes]

    def among(self, names: tuple[str, ...] | list[str]) -> npt.NDArray[np.bool_]:
        """Which rows have one of these names."""
        table = np.array([name in names for name in self.names], np.bool_)
        return table[self.codes]

    def named(self, codes: npt.NDArray[Any]) -> list[str | None]:
        """The texts of some codes."""
        return [self.names[code] for code in codes.tolist()]


def table_of(events: pl.DataFrame | pa.Table) -> pa.Table:
    """The events of a frame in this form; a table stays as it is."""
    if isinstance(events, pa.Table):
        return events
    return events.select(name for name in events.columns if events[name].null_count() < len(events)).to_arrow()


def column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """A column; None where it has no value."""
    index = table.schema.get_field_index(name)
    if index < 0:
        return None
    found = table.column(index)
    return found if found.null_count < len(found) else None


def texts(table: pa.Table, name: str) -> Texts:
    """A column of texts."""
    found = column(table, name)
    if found is None:
        return Texts(np.zeros(table.num_rows, np.int32), [None])
    found = (found if pa.types.is_dictionary(found.type) else found.dictionary_encode()).unify_dictionaries()
    chunks = found.chunks
    names = chunks[0].dictionary.to_pylist()
    whole = not found.null_count
    codes = [(c.indices if whole else c.indices.fill_null(len(names))).to_numpy(zero_copy_only=False) for c in chunks]
    return Texts((codes[0] if len(codes) == 1 else np.concatenate(codes)).astype(np.int32, copy=False), [*names, None])


def numbers(table: pa.Table, name: str, null: int = -1) -> I64:
    """A column of integers, with `null` where there is none. Not to be written to."""
    found = column(table, name)
    if found is None:
        return np.full(table.num_rows, null, np.int64)
    return as_numpy(found.fill_null(null) if found.null_count else found).astype(np.int64, copy=False)


def truths(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """A column of truth values, false where there is none."""
    found = column(table, name)
    return np.zeros(table.num_rows, np.bool_) if found is None else as_numpy(found.fill_null(False)).astype(np.bool_)


def as_numpy(found: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of a column without nulls; not copied where they lie in one piece."""
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in found.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([*chunks, np.zeros(0, found.type.to_pandas_dtype())])


@dataclass(frozen=True)
class ListColumn:
    """A column of lists: row i has `flat[start[i] : start[i] + length[i]]`; null counts as empty."""

    flat: npt.NDArray[Any]
    start: I64
    length: I64


def listed(found: pa.ChunkedArray | pa.Array) -> ListColumn:
    """The lists of a column, as flat numbers."""
    chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks]
    widths = [pc.list_value_length(chunk) for chunk in chunks]
    each = [(w.fill_null(0) if w.null_count else w).to_numpy().astype(np.int64) for w in widths]
    length = each[0] if len(each) == 1 else np.concatenate([*each, np.zeros(0, np.int64)])
    joined = (
        flat[0] if len(flat) == 1 else np.concatenate([*flat, np.zeros(0, found.type.value_type.to_pandas_dtype())])
    )
    return ListColumn(joined, np.cumsum(length) - length, length)
