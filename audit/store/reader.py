"""A connection for programs that stay: it follows the store, and never answers from a part of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import polars as pl
import pyarrow as pa

from kvwitness.audit.store.failures import CorruptSegment, OlderStore, StoreError
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.snapshot import take
from kvwitness.audit.store.verification import check_segments, old_schema

_ATTEMPTS = 5


class Reader:
    """Runs SQL over the store for as long as you like.

    When `store.duckdb` has been replaced (seen by its inode) it reconnects before the next query; when files
    went while a query ran, it reconnects and runs the query again. One thread at a time.
    """

    def __init__(self, catalog: Path, connect: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._catalog = catalog
        self._connect = connect
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._identity: tuple[int, int] | None = None

    def query(self, statement: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> pl.DataFrame:
        """The rows of a SELECT.

        Raises duckdb.Error for a faulty statement or an unreadable file.
        """
        for attempt in range(_ATTEMPTS):
            connection = self.connection()
            try:
                return rows(connection, statement, parameters)
            except duckdb.Error:
                if attempt + 1 == _ATTEMPTS or self._file_identity() == self._identity:
                    raise
                self.close()
        raise AssertionError("unreachable")

    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection as of now, for what `query` does not do; ask for it before every statement."""
        identity = self._file_identity()
        if self._connection is None or identity != self._identity:
            self.close()
            # The identity is that of before: if the file is replaced meanwhile, the next query connects
            # again.
            self._connection, self._identity = self._connect(), identity
        return self._connection

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            info = os.stat(self._catalog)
        except FileNotFoundError:
            return None
        return info.st_ino, info.st_mtime_ns

    def close(self) -> None:
        """Close the connection; the next query opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rows(
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    parameters: Sequence[Any] | dict[str, Any] | None = None,
) -> pl.DataFrame:
    """The rows of a SELECT as a Polars frame; an empty frame for a statement without rows."""
    to_arrow = getattr(connection.sql(statement, params=parameters), "to_arrow_table", None)
    if to_arrow is None:  # DuckDB 1.x gives no relation for a statement such as SET
        return pl.DataFrame()
    frame = pl.from_arrow(to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


@contextmanager
def explained_reading(layout: Layout) -> Iterator[None]:
    """Inside this block a failed read says which segment is damaged, if one is; see `Store.reading`."""
    try:
        yield
    except (pl.exceptions.PolarsError, duckdb.Error, pa.ArrowException, OSError) as exc:
        problems, sound = check_segments(take(layout, {}))
        if problems:
            names = ", ".join(p.name for p in problems)
            raise CorruptSegment(
                f"Reading the store failed: {names} is damaged or missing.", problems[0].advice
            ) from exc
        if old := old_schema(sound):
            raise OlderStore(old[0].message, old[0].advice) from exc
        if isinstance(exc, OSError) or "No such file" in str(exc) or "No files found" in str(exc):
            raise StoreError(
                "Reading failed because old files of the store were removed meanwhile.",
                "Run it again: it then reads the current state. The result would have been incomplete.",
            ) from exc
        raise
