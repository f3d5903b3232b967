"""`kvwitness sql`: questions to the store, read-only: in SQL, or by the name of an incident query."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import duckdb
import polars as pl
import typer

from kvwitness.audit.asking import ask, checked, connect, rests_on_audit, run
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.progress import stages
from kvwitness.audit.cli.stores import age, open_store, tenant_name
from kvwitness.audit.cli.tables import cell, record_tables
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.queries import Query, find, queries
from kvwitness.audit.store import Pseudonyms, Store

app = typer.Typer(add_completion=False)

ROWS = 10_000
SECONDS = 60.0
_LOOKED_AT, _WIDE = 100, 24
"""Rows from which the width of a table is judged; a cell may be broken beyond that many characters."""
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@app.command("sql")
def sql(
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="One SELECT, or the name of an incident query; default: a shell."),
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the query.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the incident queries.")] = False,
    show: Annotated[str | None, typer.Option("--show", metavar="NAME", help="Print one, with what it means.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="DIR", help="Write a DuckDB file that stands alone (-p since=..., until=...)."
        ),
    ] = None,
    pseudonymise: Annotated[
        bool, typer.Option("--pseudonymise", help="Export tenants under pseudonyms of a key that nobody keeps.")
    ] = False,
    pseudonym_key: Annotated[
        Path | None, typer.Option("--pseudonym-key", metavar="FILE", help="Export them under pseudonyms of this key.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, help=f"Most rows; 0 for all.  [default: {ROWS}, in the shell 100]")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds after which it is stopped; 0 for never.")
    ] = SECONDS,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Ask the store: one SELECT in DuckDB's SQL, or an incident query by its name. Nothing can be changed.

    Without either, a terminal gets a shell, and anything else is read as the question. Ctrl-C stops a query.
    `--list` names the incident queries, `SHOW TABLES` and `DESCRIBE requests` the views.
    """
    if listing or show is not None:
        _tell(Printer.choose(format, output), show)
        return
    parameters = named_values(param or [])
    if export is not None:
        key = Pseudonyms.from_file(pseudonym_key) if pseudonym_key else None
        _export(open_store(store), export, parameters, key, pseudonymise or key is not None, quiet=quiet)
        return
    opened = open_store(store)
    if query is None and sys.stdin.isatty() and not parameters:
        from kvwitness.audit.cli.shell import Shell

        Shell(opened, format=format, limit=limit, timeout=timeout).run()
        return
    printer = Printer.choose(format, output)
    asked = (sys.stdin.read() if query is None else query).strip()
    most = ROWS if limit is None else limit
    frame, more = _answer(opened, asked, parameters, most, timeout, quiet=quiet)
    print_answer(printer, frame)
    if more:
        say(f"only the first {most:,} rows; --limit 0 gives all", quiet=quiet)


def _answer(
    store: Store, asked: str, parameters: dict[str, str], limit: int, timeout: float, *, quiet: bool
) -> tuple[pl.DataFrame, bool]:
    named = find(asked) if _NAME.fullmatch(asked) else None
    if named is None and parameters:
        raise KvwitnessError("--param belongs to an incident query, and this is none.", "`kvwitness sql --list`")
    with connect(store) as connection, store.reading():
        if named is None:
            checked(connection, asked)
            tell_age(store, connection, asked, quiet=quiet)
            return ask(connection, asked, limit=limit, timeout=timeout)
        warn(named, quiet=quiet)
        tell_age(store, connection, named.select, quiet=quiet)
        with stages(quiet=quiet) as stage:
            return run(
                connection,
                named,
                parameters,
                limit=limit,
                timeout=timeout,
                progress=lambda done: stage(named.name, done),
            )


def print_answer(printer: Printer, frame: pl.DataFrame) -> None:
    """Print rows; for a person, one below the other where the terminal is too narrow for that many columns."""
    width = get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    if not printer.for_people or printer.path is not None or _width(frame) <= width:
        printer.rows(frame)
        return
    blocks = [
        table
        for number, row in enumerate(frame.iter_rows(named=True), start=1)
        for table in record_tables({k: v for k, v in row.items() if v is not None}, f"row {number}")
    ]
    printer.blocks(blocks)


def _width(frame: pl.DataFrame) -> int:
    """Columns of a terminal that a table of the frame needs to be read with ease."""
    shown = frame.head(_LOOKED_AT)
    widths = [
        max([len(name), *(min(len(cell(value, name)), _WIDE) for value in shown[name].to_list())])
        for name in frame.columns
    ]
    return sum(widths) + 2 * len(widths)


def named_values(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` as they were typed; a tenant's name becomes its pseudonym where there is a key for such.

    Raises `KvwitnessError` for a text of another form.
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise KvwitnessError(f"{text!r} is no parameter.", "Write NAME=VALUE, such as request_id=r1017.")
        name = name.replace("-", "_")
        if name in values:
            raise KvwitnessError(f"{name} is given twice.", "Ask once for each value.")
        values[name] = tenant_name(value) if name == "tenant_id" else value
    return values


def tell_age(store: Store, connection: duckdb.DuckDBPyConnection, statement: str, *, quiet: bool = False) -> None:
    """Say when a statement asks for what an audit found, and that audit has not seen all that is on record now."""
    if not rests_on_audit(statement):
        return
    for started_ns, events in connection.execute("SELECT started_ns, events FROM audit_run").fetchall():
        if told := age(store, started_ns, events):
            say(told, quiet=quiet)


def warn(query: Query, *, quiet: bool = False) -> None:
    """Say beforehand that a query takes long on a large store."""
    if query.scan:
        say(f"{query.name} reads most of the store, which takes a while on a large one; Ctrl-C stops it", quiet=quiet)


def _tell(printer: Printer, name: str | None) -> None:
    """The list of queries, or one of them with its header and its SQL."""
    if name is not None:
        query = find(name)
        if printer.for_people:
            sys.stdout.write(query.text)
        else:
            printer.record(_described(query) | {"sql": query.text})
        return
    if printer.for_people:
        rows = [(q.name, q.question, ", ".join(p.name for p in q.parameters)) for q in queries().values()]
        printer.rows(pl.DataFrame(rows, schema=["query", "question", "parameters"], orient="row"))
    else:
        printer.objects([_described(q) for q in queries().values()])


def _described(query: Query) -> dict[str, object]:
    parameters = [
        {"name": p.name, "type": p.type, "default": p.default, "meaning": p.meaning} for p in query.parameters
    ]
    return {
        "query": query.name,
        "question": query.question,
        "parameters": parameters,
        "means": query.means,
        "cannot_say": query.cannot_say,
        "scan": query.scan,
    }


def _export(
    store: Store, directory: Path, parameters: dict[str, str], key: Pseudonyms | None, hide: bool, *, quiet: bool
) -> None:
    from kvwitness.audit.exporting import export

    if unknown := sorted(parameters.keys() - {"since", "until"}):
        raise KvwitnessError(f"An export has no parameter {', '.join(unknown)}.", "It takes since and until.")
    with stages(quiet=quiet) as stage:
        stage("exporting", 0.0)
        path, events = export(
            store,
            directory,
            since=parameters.get("since"),
            until=parameters.get("until"),
            pseudonyms=(key or Pseudonyms.random()) if hide else None,
        )
    say(f"{path}: {events:,} events; open it with any DuckDB from 1.4 on", quiet=quiet)
