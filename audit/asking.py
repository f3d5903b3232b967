"""Questions to a store in SQL: only such as read, with limits, and with an end.

The door for programs is `query` (also `kvwitness.audit.query`); the command line and dashboards ask through the rest.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.queries import Parameter, Query, find
from kvwitness.audit.store import Store
from kvwitness.audit.store import sql as quoting
from kvwitness.audit.store.views import RESULTS

MOMENT = "least(greatest(CAST($1 AS TIMESTAMP), TIMESTAMP '1678-01-01'), TIMESTAMP '2262-01-01')"
"""SQL: a time that somebody gave, within what nanoseconds since the epoch can tell. No event lies beyond, so that
9999-12-31 and infinity mean what they should."""

Progress = Callable[[float], None]
"""Called with the fraction that is done, while a query runs."""

_AGAIN = 0.1
_EXPLAIN = re.compile(r"\s*explain\s+(\([^)]*\)\s*)?(analyze\s+)?", re.IGNORECASE)
_RESULTS = re.compile(r"\b(reads|" + "|".join(v.name for v in RESULTS if v.loud) + r")\b")
_KNOWN = {
    "request_id": ("request", "No event names the request {!r}."),
    "tenant_id": ("tenant", "No event names the tenant {!r}."),
    "pool_name": ("pool", "No event names the pool {!r}."),
}
"""Parameter -> (column of the events, what to say when no event has the value): a typing error must not look like
"nothing found"."""
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")


def query(name: str, /, *, store: Store | str | Path | None = None, **parameters: Any) -> pl.DataFrame:
    """The answer to one of the incident queries (`kvwitness.audit.queries`), as of now.

    `store` is a store or its directory; default: $KVWITNESS_STORE, else ./kvwitness-store. Times are datetimes (naive
    ones are UTC) or text. Raises KvwitnessError for an unknown name, a wrong parameter, a store that was never audited
    where the query needs that, or a request, tenant or pool that no event names.
    """
    wanted = find(name)
    opened = store if isinstance(store, Store) else Store.open(store or _default_store())
    with connect(opened) as connection, opened.reading():
        return run(connection, wanted, parameters)[0]


def _default_store() -> Path:
    return Path(os.environ.get("KVWITNESS_STORE", "kvwitness-store"))


def connect(store: Store) -> duckdb.DuckDBPyConnection:
    """A connection that reads the store, and no other file; nothing about that can be changed in it."""
    return confine(store.connect(), store)


def confine(connection: duckdb.DuckDBPyConnection, store: Store) -> duckdb.DuckDBPyConnection:
    """Close a connection's way to everything but the files of the store."""
    connection.execute(f"SET allowed_directories = [{quoting.text(f'{store.path}/')}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def run(
    connection: duckdb.DuckDBPyConnection,
    query: Query,
    parameters: Mapping[str, Any],
    *,
    limit: int = 0,
    timeout: float = 0.0,
    progress: Progress | None = None,
) -> tuple[pl.DataFrame, bool]:
    """The rows of an incident query, at most `limit` (0: all), and whether there were more; errors as in `query`."""
    bind(connection, query, parameters)
    _check_audited(connection, query)
    answer = ask(connection, query.select, limit=limit, timeout=timeout, progress=progress)
    if answer[0].is_empty() or "tenant_id" in parameters:  # a customer is told every count, also where it is 0
        _check_known(connection, query, parameters)
    return answer


def rests_on_audit(statement: str) -> bool:
    """Whether a statement asks for results of an audit, so that its answer is as old as that."""
    return _RESULTS.search(statement) is not None


def bind(connection: duckdb.DuckDBPyConnection, query: Query, parameters: Mapping[str, Any]) -> None:
    """Set the variables of a query; those that are not given get their defaults."""
    if unknown := sorted(parameters.keys() - {p.name for p in query.parameters}):
        takes = ", ".join(p.name for p in query.parameters) or "none"
        raise KvwitnessError(f"{query.name} has no parameter {', '.join(unknown)}.", f"Its parameters: {takes}.")
    missing = [p for p in query.parameters if p.default is None and parameters.get(p.name) is None]
    if missing:
        told = "; ".join(f"{p.name} ({p.type}): {p.meaning}" for p in missing)
        raise KvwitnessError(f"{query.name} needs {', '.join(p.name for p in missing)}.", told)
    for parameter in query.parameters:
        value = parameters.get(parameter.name)
        _set(connection, parameter, parameter.default if value is None else value)
    if {"since", "until"} <= {p.name for p in query.parameters}:
        _check_window(connection, parameters)


def _check_window(connection: duckdb.DuckDBPyConnection, parameters: Mapping[str, Any]) -> None:
    """Raise `KvwitnessError` for a window that can hold nothing: its empty answer would look like "nothing found"."""
    if connection.execute("SELECT getvariable('since') >= getvariable('until')").fetchall() == [(True,)]:
        told = ", ".join(f"{name} = {parameters[name]!s}" for name in ("since", "until") if parameters.get(name))
        raise KvwitnessError(f"The window is empty: {told}.", "`since` has to be earlier than `until`.")


def _set(connection: duckdb.DuckDBPyConnection, parameter: Parameter, value: Any) -> None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    name = quoting.name(parameter.name)
    cast = MOMENT if parameter.type == "TIMESTAMP" else f"CAST($1 AS {parameter.type})"
    wrong = KvwitnessError(f"{parameter.name} = {value!r} is no {parameter.type}.", parameter.meaning)
    if not _exact(parameter.type, value):
        raise wrong
    try:
        connection.execute(f"SET VARIABLE {name} = {cast}", [value])
    except duckdb.Error as error:
        raise wrong from error


def _exact(kind: str, value: Any) -> bool:
    """Whether a value is what it is read as: DuckDB would round 1.5 to another page, and no share is at least nan."""
    try:
        if kind == "BIGINT":
            return bool(_WHOLE.fullmatch(value)) if isinstance(value, str) else int(value) == value
        return kind != "DOUBLE" or isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _check_audited(connection: duckdb.DuckDBPyConnection, query: Query) -> None:
    """Raise `KvwitnessError` when a query needs results of an audit and there was none."""
    if rests_on_audit(query.select) and not connection.execute("SELECT 1 FROM audit_run").fetchall():
        raise KvwitnessError(
            f"{query.name} needs the results of an audit, and this store was never audited.", "Run `kvwitness audit`."
        )


def _check_known(connection: duckdb.DuckDBPyConnection, query: Query, parameters: Mapping[str, Any]) -> None:
    """Raise `KvwitnessError` when a name that was asked for is not on record at all."""
    for parameter in query.parameters:
        if parameter.name in _KNOWN:
            column, told = _KNOWN[parameter.name]
            value = parameters[parameter.name]
            seen = connection.execute(f"SELECT 1 FROM events WHERE {column} = $1 LIMIT 1", [value]).fetchall()
            if not seen and not (column == "pool" and _as_end(connection, value)):
                raise KvwitnessError(told.format(value), "Names are compared letter by letter.")


def _as_end(connection: duckdb.DuckDBPyConnection, pool: Any) -> bool:
    """Whether a pool is named at least as the end of a copy or a transfer."""
    named = "SELECT 1 FROM events WHERE $1 IN (to_pool, src_pool, dst_pool) LIMIT 1"
    return bool(connection.execute(named, [pool]).fetchall())


def checked(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """Raise `KvwitnessError` unless the text is one statement that only reads."""
    try:
        statements = connection.extract_statements(statement)
    except duckdb.Error as error:
        raise _refused(error) from error
    if len(statements) != 1:
        found = "no statement" if not statements else f"{len(statements)} statements"
        raise KvwitnessError(f"There is {found}, where one is expected.", "Give one SELECT.")
    found_type = statements[0].type
    if found_type == duckdb.StatementType.EXPLAIN:
        # EXPLAIN ANALYZE runs what it explains.
        checked(connection, _EXPLAIN.sub("", statements[0].query, count=1))
    elif found_type != duckdb.StatementType.SELECT:
        raise KvwitnessError(
            f"{found_type.name} is not allowed here.",
            "The store is read-only: give a SELECT, SHOW, DESCRIBE, SUMMARIZE or EXPLAIN.",
        )


def ask(
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    *,
    limit: int = 0,
    timeout: float = 0.0,
    progress: Progress | None = None,
) -> tuple[pl.DataFrame, bool]:
    """The rows of a statement, at most `limit` (0: all), and whether there were more.

    Raises `KvwitnessError` when the statement is faulty, or runs longer than `timeout` seconds (0: never). Ctrl-C stops
    it and passes on.
    """

    def fetch() -> pl.DataFrame:
        relation = connection.sql(statement)
        frame = pl.from_arrow((relation.limit(limit + 1) if limit else relation).to_arrow_table())
        assert isinstance(frame, pl.DataFrame)
        return frame

    try:
        frame = _interruptible(connection, fetch, timeout, progress)
    except TimeoutError:
        raise KvwitnessError(
            f"The query was stopped after {timeout:g} s.", "Ask for less, or give --timeout more seconds."
        ) from None
    except duckdb.Error as error:
        raise _refused(error) from error
    return (frame.head(limit), True) if limit and len(frame) > limit else (frame, False)


def _interruptible(
    connection: duckdb.DuckDBPyConnection, run: Callable[[], pl.DataFrame], timeout: float, progress: Progress | None
) -> pl.DataFrame:
    """The result of `run`, in a thread of its own: DuckDB does not look for Ctrl-C while it works, a waiting
    thread does. Raises `TimeoutError` after `timeout` seconds (0: never)."""
    end = time.monotonic() + timeout
    with ThreadPoolExecutor(1) as executor:
        result = executor.submit(run)
        try:
            while not wait([result], min(_AGAIN, timeout or _AGAIN)).done:
                if progress is not None:
                    progress(max(0.0, connection.query_progress()) / 100)
                if timeout and time.monotonic() >= end:
                    raise TimeoutError
            return result.result()
        except (KeyboardInterrupt, TimeoutError):
            while not result.done():
                connection.interrupt()
                wait([result], _AGAIN)
            raise


def _refused(error: duckdb.Error) -> KvwitnessError:
    said = str(error).removeprefix("Invalid Input Error: ")
    if "run `kvwitness" in said:
        return KvwitnessError(said, "")
    return KvwitnessError(said, "`SHOW TABLES` lists the views, `DESCRIBE events` their columns.")
