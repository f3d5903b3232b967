"""What a view is: its SQL, and what it and each of its columns mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from kvwitness.audit.store import sql
from kvwitness.audit.store.schema import COMMENTS

SITE = "split_part(coalesce(source, ''), '/', 1)"
"""The engine, gateway or client that a source belongs to."""
LIFE = "coalesce(incarnation, 0)::INTEGER"
"""Which life of a request id; an absent one is the first."""
SITE_COMMENT = "Engine, gateway or client that recorded it: `source` up to the first slash."
TS_COMMENT = "time_ns as a timestamp (UTC)."
LIFE_COMMENT = "Which life of a re-used request id; 0 is the first."

OTEL: Mapping[str, str] = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "max_new_tokens": "gen_ai.request.max_tokens",
    "model": "gen_ai.request.model",
    "finish_reason": "gen_ai.response.finish_reasons",
    "status": "http.response.status_code",
}
"""Column -> the attribute that OpenTelemetry uses for the same thing."""


_POLARS: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "VARCHAR": pl.String,
    "INTEGER": pl.Int32,
    "BIGINT": pl.Int64,
    "VARCHAR[]": pl.List(pl.String),
    "BIGINT[]": pl.List(pl.Int64),
    "UINTEGER[]": pl.List(pl.UInt32),
}


@dataclass(frozen=True)
class View:
    """A view that is computed from the events or from other views."""

    name: str
    about: str
    """One or two sentences: what a row is, and what to know before using it."""
    query: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column -> its meaning and unit, in the order of the columns. An empty text means that of the event column."""

    def comments(self) -> dict[str, str]:
        """Column -> comment, with the OpenTelemetry name where there is one."""
        return {name: _told(name, text or COMMENTS[name]) for name, text in self.columns.items()}


@dataclass(frozen=True)
class Macro:
    """A view with parameters: `SELECT * FROM name(...)`."""

    name: str
    about: str
    parameters: tuple[str, ...]
    """Names, each with `:=` and its default where it may be left out. None may be the name of a column."""
    query: str


@dataclass(frozen=True)
class ResultView:
    """A table of the newest audit as a view."""

    name: str
    about: str
    columns: Mapping[str, tuple[str, str]]
    """Column -> (DuckDB type, meaning and unit)."""
    times: Mapping[str, str] = field(default_factory=dict)
    """Column that is added -> the column in nanoseconds that it shows as a timestamp."""
    loud: bool = True
    """Before the first audit, reading it fails and says so: an empty answer would look like "nothing found"."""

    def comments(self) -> dict[str, str]:
        """Column -> comment."""
        told = {name: _told(name, text) for name, (_, text) in self.columns.items()}
        return told | {name: f"{of} as a timestamp (UTC)." for name, of in self.times.items()}

    def empty(self) -> pl.DataFrame:
        """The table without rows. Columns of other types than those in `_POLARS` are left out."""
        return pl.DataFrame(schema={n: _POLARS[kind] for n, (kind, _) in self.columns.items() if kind in _POLARS})

    def query(self, path: str | None, present: tuple[str, ...]) -> str:
        """SQL over the result file at `path`, which has the columns `present`; None: there is no such file.

        Columns that an older audit did not write are null, those that a newer one added come last.
        """
        # Where reading has to fail, nulls would not do: no row passes a condition on them, so that nothing is read.
        absent = "NULL::{}" if path is not None or not self.loud else "CAST(said AS {})"
        typed = [
            sql.name(name) if name in present else f"{absent.format(kind)} AS {sql.name(name)}"
            for name, (kind, _) in self.columns.items()
        ]
        others = [sql.name(name) for name in present if name not in self.columns and name not in self.times]
        stamped = [f"make_timestamp_ns({sql.name(of)}) AS {sql.name(name)}" for name, of in self.times.items()]
        columns = ", ".join([*typed, *others])
        source = self._source(path)
        return (
            f"SELECT *, {', '.join(stamped)} FROM ({columns_of(columns, source)})"
            if stamped
            else columns_of(columns, source)
        )

    def _source(self, path: str | None) -> str:
        if path is not None:
            return f"FROM read_parquet({sql.text(path)}, hive_partitioning = false)"
        if not self.loud:
            return "WHERE false"
        said = f"No audit of this store has written {self.name}: run `kvwitness audit`, then open store.duckdb again."
        return f"FROM (SELECT CAST(error({sql.text(said)}) AS VARCHAR) AS said) WHERE said IS NOT NULL"


def columns_of(columns: str, source: str) -> str:
    """A SELECT."""
    return f"SELECT {columns} {source}"


def _told(name: str, text: str) -> str:
    return f"{text} OpenTelemetry: {OTEL[name]}." if name in OTEL else text
