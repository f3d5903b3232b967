"""The table that the store keeps: the event columns, and two that say how a row came in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvwitness.audit.store.failures import StoreError
from kvwitness.audit.trace import EVENT_SCHEMA, column_comments

SCHEMA_VERSION = 1
"""Version of the columns of segments. Raise it with every change and register a migration (see
migration.py)."""

INGEST = "ingest"
INGEST_ROW = "ingest_row"
STORE_SCHEMA: pa.Schema = pa.schema(
    [
        *EVENT_SCHEMA,
        pa.field(INGEST, pa.string(), nullable=False),
        pa.field(INGEST_ROW, pa.int64(), nullable=False),
    ]
)
"""EVENT_SCHEMA and `ingest`, `ingest_row`. The pair is unique in a store and stays with the row through
compaction: it is the order of arrival, and it proves that nothing is there twice."""

COMMENTS: dict[str, str] = {
    **column_comments(),
    INGEST: "Who brought the row in: a writer, or an import (import-...).",
    INGEST_ROW: "Number of the row within its ingest: grows in order of arrival, with gaps between flushes.",
}
"""Column -> what it means."""


def event_columns(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """The table in exactly EVENT_SCHEMA: columns ordered and cast, absent nullable ones filled with nulls.

    Raises StoreError that names the column when one is unknown, missing, of another type, or null where it
    must not be.
    """
    return conform(table, EVENT_SCHEMA)


def conform(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The table in exactly `schema`; see `event_columns`."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    unknown = sorted(set(table.column_names) - set(schema.names))
    if unknown:
        raise StoreError(
            f"The batch has columns that are not part of the event schema: {', '.join(unknown)}.",
            "Fields outside the vocabulary belong into the JSON text of the column `extra`.",
        )
    same = table.schema.equals(schema)
    columns = table.columns if same else [_column(table, field) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            row = pc.index(column.is_null(), True).as_py()
            raise StoreError(
                f"Column `{field.name}` is null in row {row} of the batch; every event has one.",
                "Read traces with `kvwitness.audit.trace.read_jsonl`, which checks each event.",
            )
    return pa.Table.from_arrays(columns, schema=schema)


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        if field.nullable:
            return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        raise StoreError(f"The batch has no column `{field.name}`; every event has one.")
    column = table.column(field.name)
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise StoreError(f"Column `{field.name}` cannot be kept as {field.type}: {exc}") from exc


def with_ingest(events: pa.Table, ingest: str, first_row: int) -> pa.Table:
    """STORE_SCHEMA rows from EVENT_SCHEMA rows, numbered from `first_row`."""
    rows = events.num_rows
    return pa.Table.from_arrays(
        [
            *events.columns,
            pa.chunked_array([pa.repeat(pa.scalar(ingest, pa.string()), rows)]),
            pa.chunked_array([pa.array(np.arange(first_row, first_row + rows, dtype=np.int64))]),
        ],
        schema=STORE_SCHEMA,
    )
