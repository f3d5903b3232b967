"""`kvwitness incidents`: what the newest audit found, one row per incident."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import polars as pl
import typer

from kvwitness.audit.cli.answers import TraceOption, find_answer
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Format, Printer, say
from kvwitness.audit.cli.stores import open_store, tenant_name
from kvwitness.audit.cli.summary import incident_table
from kvwitness.audit.overall import standing
from kvwitness.audit.overall.overview import incident_rows
from kvwitness.audit.pagesets import in_ranges
from kvwitness.audit.rules.model import Verdict
from kvwitness.audit.store import Casebook
from kvwitness.audit.wording import several

app = typer.Typer(add_completion=False)

_COLUMNS = [
    "incident", "verdict", "request", "incarnation", "tenant", "engine", "other_requests", "other_tenants",
    "rules", "pools", "pages", "first_ns", "last_ns", "findings", "standing", "standing_by", "standing_ns",
    "standing_why", "assignee",
]  # fmt: skip


class Stands(StrEnum):
    """Where incidents can stand, as `--standing` names it."""

    OPEN = "open"
    CHANGED = "changed"
    ACKNOWLEDGED = "acknowledged"
    CLOSED = "closed"


_MEANT = {
    Stands.OPEN: [standing.OPEN, standing.CHANGED],
    Stands.CHANGED: [standing.CHANGED],
    Stands.ACKNOWLEDGED: [standing.ACKNOWLEDGED],
    Stands.CLOSED: [standing.CLOSED],
}


@app.command("incidents")
def incidents(
    store: StoreOption = DEFAULT_STORE,
    trace: TraceOption = None,
    verdict: Annotated[
        list[Verdict] | None, typer.Option("--verdict", help="Only these; may be given several times.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only those of this tenant, or that showed its content.")
    ] = None,
    request: Annotated[str | None, typer.Option("--request", help="Only that of this request.")] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="Only those in which this rule fired.")] = None,
    stands: Annotated[
        list[Stands] | None,
        typer.Option(
            "--standing", help="Only these; may be given several times. Closed ones that changed since are open."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most rows; 0 for all.")] = 0,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """List the incidents of the newest audit, the strongest first."""
    printer = Printer.choose(format, output)
    notes = Casebook.no_entries() if trace is not None else open_store(store).casebook.entries()
    rows = standing.standings(incident_rows(find_answer(store, trace, quiet=quiet)), notes)
    total = len(rows)
    if verdict:
        rows = rows.filter(pl.col("verdict").is_in([str(v) for v in verdict]))
    if tenant is not None:
        name = tenant if trace is not None else tenant_name(tenant)
        rows = rows.filter((pl.col("tenant") == name) | pl.col("other_tenants").list.contains(name))
    if request is not None:
        rows = rows.filter(pl.col("request") == request)
    if rule is not None:
        rows = rows.filter(pl.col("rules").list.contains(rule))
    if stands:
        rows = rows.filter(pl.col("standing").is_in([word for one in stands for word in _MEANT[one]]))
    matching, shown = len(rows), rows.head(limit) if limit else rows
    if printer.for_people:
        printer.blocks([incident_table(shown, standing=_standing(shown))] if len(shown) else [])
    else:
        _print(printer, shown.select(_COLUMNS))
    of_total = "" if matching == total else f" of {total:,} match"
    cut = "" if len(shown) == matching else f", {len(shown):,} shown"
    say(f"{several(matching, 'incident')}{of_total}{cut}", quiet=quiet)


def _standing(shown: pl.DataFrame) -> list[str] | None:
    """What people did with each; None where nobody did anything."""
    if shown["said_ns"].null_count() == len(shown):
        return None
    return [_stands(row) for row in shown.iter_rows(named=True)]


def _stands(row: dict[str, Any]) -> str:
    told = str(row["standing"])
    if row["standing"] in (standing.ACKNOWLEDGED, standing.CLOSED):
        told += f" by {row['standing_by']}"
    if row["standing"] == standing.CLOSED:
        told += f": {row['standing_why']}"
    return f"{told}, assigned to {row['assignee']}" if row["assignee"] else told


def _print(printer: Printer, shown: pl.DataFrame) -> None:
    """Pages as ranges; in Parquet, which packs lists well and has types for them, one by one."""
    if printer.format is Format.PARQUET:
        printer.rows(shown)
    else:
        printer.objects([_told(row) for row in shown.iter_rows(named=True)], columns=_COLUMNS)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    pools = [{"pool": one["pool"], **in_ranges(one["pages"], one["gens"])} for one in row["pools"] or ()]
    return row | {"pools": pools}
