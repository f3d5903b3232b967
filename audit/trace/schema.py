"""The trace as tables: Arrow, Polars and DuckDB types of the event columns, all derived from the fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kvwitness.audit.trace.fields import FIELDS
from kvwitness.audit.trace.model import Form

if TYPE_CHECKING:
    import polars as pl

_ARROW: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "string": pa.string(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "list<uint32>": pa.list_(pa.uint32()),
    "list<int64>": pa.list_(pa.int64()),
    "list<string>": pa.list_(pa.string()),
}
_DUCKDB: dict[str, str] = {
    "int64": "BIGINT",
    "int32": "INTEGER",
    "string": "VARCHAR",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "list<uint32>": "UINTEGER[]",
    "list<int64>": "BIGINT[]",
    "list<string>": "VARCHAR[]",
}
NOT_NULL: frozenset[str] = frozenset({"time_ns", "event"})
"""Columns that every event has."""

_LINE = (
    "line",
    "int64",
    "Line of the file the event came from, from 1; the order of arrival where `seq` is absent.",
)
_EXTRA = ("extra", "string", "Fields outside the vocabulary as one JSON object; null where there are none.")


def _columns() -> list[tuple[str, str, str]]:
    """(column, Arrow type name, comment) in table order."""
    out = []
    for field in FIELDS.values():
        names = field.column_names
        for n, column in enumerate(names):
            part = ("", "First of: ", "End (exclusive) of: ")[n + 1 if len(names) == 2 else 0]
            unit = "ns since the Unix epoch" if field.form is Form.TIME else field.unit
            out.append(
                (
                    column,
                    field.arrow_name,
                    f"{part}{field.meaning} [{unit}]" if unit else part + field.meaning,
                )
            )
        if field.name == "tenant_source":
            out.append(_LINE)
    out.append(_EXTRA)
    return out


EVENT_SCHEMA: pa.Schema = pa.schema(
    [pa.field(name, _ARROW[kind], nullable=name not in NOT_NULL) for name, kind, _ in _columns()]
)
"""One row per event; see `column_comments` for the meaning of each column."""


def column_comments() -> dict[str, str]:
    """Column -> what it means, in table order."""
    return {name: comment for name, _, comment in _columns()}


def duckdb_types() -> dict[str, str]:
    """Column -> DuckDB type, in table order."""
    return {name: _DUCKDB[kind] for name, kind, _ in _columns()}


def duckdb_ddl(table: str) -> str:
    """SQL that creates an empty event table named `table` and comments each of its columns."""
    quoted = '"' + table.replace('"', '""') + '"'
    lines = [f'    "{name}" {kind}{" NOT NULL" if name in NOT_NULL else ""}' for name, kind in duckdb_types().items()]
    comments = [
        "COMMENT ON COLUMN {}.\"{}\" IS '{}';".format(quoted, name, text.replace("'", "''"))
        for name, text in column_comments().items()
    ]
    return f"CREATE TABLE {quoted} (\n" + ",\n".join(lines) + "\n);\n" + "\n".join(comments) + "\n"


def polars_schema() -> pl.Schema:
    """The event columns as Polars types."""
    import polars as pl

    types: dict[str, pl.DataType] = {
        "int64": pl.Int64(),
        "int32": pl.Int32(),
        "string": pl.String(),
        "double": pl.Float64(),
        "bool": pl.Boolean(),
        "list<uint32>": pl.List(pl.UInt32()),
        "list<int64>": pl.List(pl.Int64()),
        "list<string>": pl.List(pl.String()),
    }
    return pl.Schema({name: types[kind] for name, kind, _ in _columns()})
