"""`kvwitness sql`: one question to the store in SQL, read-only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Annotated

import duckdb
import polars as pl
import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.errors import KvwitnessError

app = typer.Typer(add_completion=False)

ROWS = 10_000
SECONDS = 60.0
_AGAIN = 0.1
_EXPLAIN = re.compile(r"\s*explain\s+(\([^)]*\)\s*)?(analyze\s+)?", re.IGNORECASE)


@app.command("sql")
def sql(
    context: typer.Context,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT; default: what standard input holds.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most rows; 0 for all.")] = ROWS,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds after which it is stopped; 0 for never.")
    ] = SECONDS,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Ask the store in DuckDB's SQL. Nothing can be changed; Ctrl-C stops a query.

    Views of what came in: events, page_events (one row per page), segments, imports.
    Views of the newest audit: findings, incidents, request_verdicts, undecided, audit_run.
    `SHOW TABLES` and `DESCRIBE events` say more.
    """
    if query is None:
        if sys.stdin.isatty():
            typer.echo(context.get_help())
            raise typer.Exit(2)
        query = sys.stdin.read()
    printer = Printer.choose(format, output)
    opened = open_store(store)
    with opened.connect() as connection, opened.reading():
        checked(connection, query)
        frame, more = ask(connection, query, limit=limit, timeout=timeout)
    printer.rows(frame)
    if more:
        say(f"only the first {limit:,} rows; --limit 0 gives all", quiet=quiet)


def checked(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raise `KvwitnessError` unless the text is one statement that only reads."""
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise _refused(error) from error
    if len(statements) != 1:
        found = "no statement" if not statements else f"{len(statements)} statements"
        raise KvwitnessError(f"There is {found}, where one is expected.", "Give one SELECT.")
    statement = statements[0]
    if statement.type == duckdb.StatementType.EXPLAIN:
        # EXPLAIN ANALYZE runs what it explains.
        checked(connection, _EXPLAIN.sub("", statement.query, count=1))
    elif statement.type != duckdb.StatementType.SELECT:
        raise KvwitnessError(
            f"{statement.type.name} is not allowed here.",
            "The store is read-only: give a SELECT, SHOW, DESCRIBE, SUMMARIZE or EXPLAIN.",
        )


def ask(
    connection: duckdb.DuckDBPyConnection, query: str, *, limit: int = 0, timeout: float = 0.0
) -> tuple[pl.DataFrame, bool]:
    """The rows of a query, at most `limit` (0: all), and whether there were more.

    Raises `KvwitnessError` when the statement is faulty, or runs longer than `timeout` seconds (0: never).
    """

    def run() -> pl.DataFrame:
        relation = connection.sql(query)
        frame = pl.from_arrow((relation.limit(limit + 1) if limit else relation).to_arrow_table())
        assert isinstance(frame, pl.DataFrame)
        return frame

    try:
        frame = _interruptible(connection, run, timeout)
    except TimeoutError:
        raise KvwitnessError(
            f"The query was stopped after {timeout:g} s.", "Ask for less, or give --timeout more seconds."
        ) from None
    except duckdb.Error as error:
        raise _refused(error) from error
    return (frame.head(limit), True) if limit and len(frame) > limit else (frame, False)


def _interruptible(
    connection: duckdb.DuckDBPyConnection, run: Callable[[], pl.DataFrame], timeout: float
) -> pl.DataFrame:
    """The result of `run`, in a thread of its own: DuckDB does not look for Ctrl-C while it works, a waiting
    thread does. Raises `TimeoutError` after `timeout` seconds (0: never)."""
    with ThreadPoolExecutor(1) as executor:
        result = executor.submit(run)
        try:
            return result.result(timeout or None)
        except (KeyboardInterrupt, TimeoutError):
            while not result.done():
                connection.interrupt()
                wait([result], _AGAIN)
            raise


def _refused(error: duckdb.Error) -> KvwitnessError:
    return KvwitnessError(str(error), "`SHOW TABLES` lists the views, `DESCRIBE events` their columns.")
