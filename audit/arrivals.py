"""What came into a store since the last audit, read piece by piece, so that not more than one has to be in memory.

A piece is a row group of a segment, or a part of the sequence that has to be put in order again. Its rows are read
once for the few columns that decide the order, and once more when their place is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kvwitness.audit.provenance.arrow import numbers, texts
from kvwitness.audit.store import STORE_SCHEMA, Snapshot


@dataclass(frozen=True)
class Piece:
    """Some rows, in an order of their own that stays the same from reading to reading."""

    rows: int
    pages: int
    """About how many pages its page lists have together."""
    filled: frozenset[str]
    """Event columns of which some row may have a value."""
    read: Callable[[list[str]], pa.Table]
    """The given event columns of all rows, texts as in `kvwitness.audit.provenance.arrow`."""

    def some(self, rows: npt.NDArray[np.int64]) -> Piece:
        """A piece of these of its rows; they ascend."""
        if len(rows) == self.rows:
            return self
        pages = self.pages * len(rows) // self.rows
        return Piece(len(rows), pages, self.filled, lambda columns: self.read(columns).take(rows))


def new_pieces(snapshot: Snapshot, marks: Mapping[str, int]) -> list[Piece]:
    """What a snapshot has beyond the `marks` of an earlier one; everything, if there are none."""
    pieces = []
    for name in snapshot.newer(marks) if marks else snapshot.names:
        path = snapshot.path(name)
        footer = pq.read_metadata(path)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            whole = Piece(group.num_rows, _pages(group), _filled(group), partial(_read, path, footer, number))
            pieces.append(whole.some(np.flatnonzero(_beyond(whole, marks))) if marks else whole)
    return [piece for piece in pieces if piece.rows]


TEXTS = frozenset(field.name for field in STORE_SCHEMA if pa.types.is_string(field.type)) | {"site"}
"""Columns that Parquet keeps as numbers into a dictionary, and that are read so."""


def opened(path: Path, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A file of events whose texts are read as numbers into a dictionary; `footer`, if it has been read already."""
    footer = footer or pq.read_metadata(path)
    return pq.ParquetFile(
        path, metadata=footer, read_dictionary=[name for name in footer.schema.names if name in TEXTS]
    )


def _read(path: Path, footer: pq.FileMetaData, group: int, columns: list[str]) -> pa.Table:
    with opened(path, footer) as file:
        return file.read_row_group(group, columns=columns, use_threads=False).select(columns)


def _pages(group: Any) -> int:
    columns = (group.column(number) for number in range(group.num_columns))
    return sum(int(column.num_values) for column in columns if column.path_in_schema.startswith("pages."))


def _filled(group: Any) -> frozenset[str]:
    """Columns that the statistics do not show to be empty; those of lists are not counted on."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return frozenset(
        column.path_in_schema.split(".")[0]
        for column in columns
        if "." in column.path_in_schema
        or column.statistics is None
        or not column.statistics.has_null_count
        or column.statistics.null_count < column.num_values
    )


def _beyond(piece: Piece, marks: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Which rows an ingest brought after its mark."""
    table = piece.read(["ingest", "ingest_row"])
    return numbers(table, "ingest_row") > texts(table, "ingest").mapped(marks, -1)


def picked(pieces: list[Piece], rows: npt.NDArray[np.int64]) -> list[Piece]:
    """The given rows of all pieces below each other, as pieces of their own; `rows` ascend."""
    starts = [0, *np.cumsum([piece.rows for piece in pieces]).tolist()]
    bounds = np.searchsorted(rows, starts)
    return [
        piece.some(rows[low:high] - start)
        for piece, start, low, high in zip(pieces, starts, bounds, bounds[1:], strict=False)
        if high > low
    ]
