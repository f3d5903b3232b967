"""`kvwitness explain`: one incident as a story, with its evidence and the SQL that brings it up again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvwitness.audit.cli.answers import TraceOption, find_answer
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer
from kvwitness.audit.cli.tables import Block, Prose, Table
from kvwitness.audit.dossier import Dossier, open_dossier
from kvwitness.audit.exhibits import exhibits, statements
from kvwitness.audit.history import collapsed
from kvwitness.audit.story import tell
from kvwitness.audit.wording import day, moment, page_text, runs_text, span_text

app = typer.Typer(add_completion=False)

SHOWN = 40
"""Rows of evidence for a person."""
FINDING_FIELDS = ("rule", "verdict", "pool", "pages", "other_requests", "other_tenants", "why", "missing")
"""What the other formats tell of a finding."""


@app.command("explain")
def explain(
    ident: Annotated[
        str, typer.Argument(metavar="ID", help="An incident, by its id or the beginning of it; or a request.")
    ],
    store: StoreOption = DEFAULT_STORE,
    trace: TraceOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Tell what happened in sentences, then show the events that prove it and the SQL that brings them up."""
    printer = Printer.choose(format, output)
    dossier = open_dossier(find_answer(store, trace, quiet=quiet), ident)
    if printer.for_people:
        printer.blocks(
            [*story(dossier), *findings(dossier), *evidence(dossier), *_queries(dossier, store, trace)]
        )
    else:
        printer.record(_document(dossier))


def story(dossier: Dossier) -> list[Block]:
    """The story under a line that says whose it is."""
    name = dossier.incident["incident"] if dossier.incident else f"request {dossier.name}"
    headline, *rest = tell(dossier)
    return [
        Prose(f"{name}: {dossier.verdict}", heading=True),
        Prose(headline),
        *[Prose(text) for text in rest],
    ]


def findings(dossier: Dossier) -> list[Block]:
    """Every finding with its verdict, the strongest first."""
    if not dossier.findings:
        return []
    rows = [
        [f["verdict"], f["rule"], f["pool"], page_text(f["pages"], 3), f["why"]] for f in dossier.findings
    ]
    return [
        Table(["verdict", "rule", "pool", "pages", "what"], rows, "What the rules found", ("verdict", "rule"))
    ]


def evidence(dossier: Dossier) -> list[Block]:
    """The proving events and the course of the request; a star where a rule names the event."""
    shown = collapsed(
        exhibits(dossier), ["source", "event", "pool", "pages", "request", "rules"], "tok", "shows"
    )
    if not shown:
        return []
    pool = next((f["pool"] for f in dossier.findings if f["pool"]), None)
    one_day = len({day(row["time_ns"]) for row in shown}) == 1
    rows = [_evidence_row(row, pool, shown[0]["time_ns"] if one_day else None) for row in shown[:SHOWN]]
    when = f" on {day(shown[0]['time_ns'])}" if one_day else ""
    title = f"Evidence{when}{table_notes(pool, len(shown), SHOWN)}"
    columns = ["", "time", "source", "seq", "event", "pages", "positions", "request", "shows"]
    return [Table(columns, rows, title, ("time", "source"))]


def table_notes(pool: str | None, rows: int, shown: int) -> str:
    """What has to be said about a table of events."""
    pages = f"; pages are those of {pool}" if pool else ""
    more = f"; the first {shown} of {rows} rows, --format json has all" if rows > shown else ""
    return f"{pages}; * a rule names it as proof{more}"


def _evidence_row(row: dict[str, Any], pool: str | None, day_of: int | None) -> list[Any]:
    elsewhere = f"{row['pool']}: " if row["pages"] and row["pool"] != pool else ""
    again = (
        f"; {row['times']} times, until {moment(row['until_ns'], day_of=day_of)}" if row["until_ns"] else ""
    )
    return [
        "*" if row["rules"] else "",
        moment(row["time_ns"], day_of=day_of),
        row["source"],
        row["seq"],
        row["event"],
        f"{elsewhere}{runs_text(row['pages'], 3)}",
        span_text(row["tok"]),
        row["request"],
        f"{row['shows']}{again}",
    ]


def _queries(dossier: Dossier, store: Path, trace: str | None) -> list[Block]:
    found = statements(dossier)
    if not found:
        return []
    where = "after `kvwitness import` and `audit`" if trace else f"any DuckDB on {store}/store.duckdb"
    blocks: list[Block] = [Prose(f"The same in SQL (`kvwitness sql`, {where})", heading=True)]
    for question, statement in found:
        blocks += [Prose(f"-- {question}", verbatim=True), Prose(f"{statement};\n", verbatim=True)]
    return blocks


def _document(dossier: Dossier) -> dict[str, Any]:
    incident, request = dossier.incident, dossier.request
    return {
        "incident": incident["incident"] if incident else None,
        "verdict": dossier.verdict,
        "request": dossier.name,
        "tenant": request["tenant"] if request else incident["tenant"] if incident else None,
        "story": tell(dossier),
        "findings": [{name: finding[name] for name in FINDING_FIELDS} for finding in dossier.findings],
        "evidence": exhibits(dossier),
        "sql": [
            {"question": question, "statement": statement} for question, statement in statements(dossier)
        ],
    }
