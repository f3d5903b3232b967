"""Writes event batches in the JSON Lines form; what is written is read back as the same events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa

from kvwitness.audit.trace.fields import FIELDS
from kvwitness.audit.trace.model import Field, Form
from kvwitness.audit.trace.pages import compress_pages
from kvwitness.audit.trace.schema import EVENT_SCHEMA
from kvwitness.audit.trace.times import time_text

_Cells = Iterable[tuple[int, Any]]
"""(row, JSON value as an object or as a Fragment) of the rows that have one."""


def write_jsonl(events: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], file: BinaryIO) -> int:
    """Write events, one line each, and return their number.

    Page lists become ranges again, the fields of `extra` stand beside the others, and null is left out. The
    column `line` is not written: it is the place in the new file. Columns that are missing count as null.
    """
    written = 0
    for batch in _batches(events):
        lines = _lines(batch)
        if lines:
            file.write(b"\n".join(lines) + b"\n")
            written += len(lines)
    return written


def _batches(events: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if isinstance(events, pa.RecordBatch):
        yield events
    elif isinstance(events, pa.Table):
        yield from events.to_batches(max_chunksize=65536)
    else:
        yield from events


def _lines(batch: pa.RecordBatch) -> list[bytes]:
    present = set(batch.schema.names)
    columns = {
        name: batch.column(name).cast(EVENT_SCHEMA.field(name).type) for name in EVENT_SCHEMA.names if name in present
    }
    rows: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    for field in FIELDS.values():
        parts = [columns[c] for c in field.column_names if c in columns]
        if len(parts) == len(field.column_names):
            for row, value in _cells(field, parts):
                rows[row][field.name] = value
    for row, value in _present(columns["extra"]) if "extra" in columns else ():
        for name, inner in orjson.loads(value).items():
            rows[row].setdefault(name, inner)
    return [orjson.dumps(row) for row in rows]


def _present(column: pa.Array) -> _Cells:
    return ((n, v) for n, v in enumerate(column.to_pylist()) if v is not None)


def _cells(field: Field, parts: list[pa.Array]) -> _Cells:
    match field.form:
        case Form.TIME:
            return ((n, orjson.Fragment(time_text(v))) for n, v in _present(parts[0]))
        case Form.OBJECT:
            return ((n, orjson.Fragment(v)) for n, v in _present(parts[0]))
        case Form.PAGES:
            return _page_cells(parts[0])
        case Form.SPAN:
            ends = parts[1].to_pylist()
            return ((n, [v, ends[n]]) for n, v in _present(parts[0]) if ends[n] is not None)
        case Form.INTS:
            return ((n, v[0] if len(v) == 1 else v) for n, v in _present(parts[0]))
        case _:
            return _present(parts[0])


def _page_cells(column: pa.ListArray) -> _Cells:
    flat = column.values.to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy()
    for row in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist():
        yield row, compress_pages(flat[offsets[row] : offsets[row + 1]])
