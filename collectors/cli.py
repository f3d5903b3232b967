"""The collectors' subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.progress import progress
from kvwitness.audit.cli.remarks import remarks
from kvwitness.audit.cli.stores import open_or_create_store
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceError
from kvwitness.collectors.importing import Imported, import_file
from kvwitness.collectors.logs.calls import Given
from kvwitness.collectors.logs.mapping import given_for, mapped

app = typer.Typer(add_completion=False)

_FAILED = 2
_SUMMARY = ("file", "read_as", "lines", "events", "added", "bad_total", "duplicate")
"""Columns of the table; the other formats hold the whole report."""


@app.command("import")
def import_files(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Traces (.jsonl, plain, gzip or zstd) and logs; - is standard input."),
    ],
    source: Annotated[
        str | None, typer.Option(help="Who wrote a log: client/NAME, gateway/NAME, an engine, bill/NAME.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose the requests of a log are that name nobody.")] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="TOML file that says what the fields of a log are called (docs/logs.md).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Bring traces and logs into the store. What a file is, is told from its content.

    Lines that give no event are counted, named and left out. A file that is there already adds nothing.
    Status 2 when a file could not be read or holds no event; the other files are imported all the same.
    """
    printer = Printer.choose(format, output)
    given = given_for(source, tenant, mapping)
    opened = open_or_create_store(store)
    imported: list[Imported] = []
    for file in files:
        try:
            imported.append(_import(opened, file, quiet, given))
        except TraceError as error:
            say(f"error: {error}")
    if imported:
        printer.objects([_shown(one.to_dict(), printer) for one in imported])
    if len(imported) < len(files):
        raise typer.Exit(_FAILED)


def _import(store: Store, file: str, quiet: bool, given: Given) -> Imported:
    with progress(f"reading {Path(file).name}", quiet=quiet) as report:
        imported = import_file(store, file, progress=report, given=given, collector=mapped(file, given))
    for remark in remarks(imported.report):
        say(f"{imported.name}: {remark}", quiet=quiet)
    if imported.mark:
        say(
            f"{imported.name}: the store has other events under the same source names and numbers; this record's "
            f"names are kept apart as NAME{imported.mark}, such as r1{imported.mark}",
            quiet=quiet,
        )
    if imported.result.duplicate:
        say(f"{imported.name}: imported before; nothing added", quiet=quiet)
    return imported


def _shown(imported: dict[str, Any], printer: Printer) -> dict[str, Any]:
    return {name: imported[name] for name in _SUMMARY} if printer.for_people else imported
