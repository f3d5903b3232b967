"""`kvwitness explain`: one incident as a story, with its evidence and the SQL that brings it up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvwitness.audit.cli.answers import TraceOption, find_answer
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer
from kvwitness.audit.cli.tables import Block, Prose, Table
from kvwitness.audit.telling.dossier import Dossier, open_dossier
from kvwitness.audit.telling.exhibits import exhibits, statements
from kvwitness.audit.telling.history import collapsed
from kvwitness.audit.telling.story import tell
from kvwitness.audit.trace import compress_pages
from kvwitness.audit.wording import clock_for, page_text, runs_text, several, span_text

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
    """Tell what happened in sentences, with the evidence and the SQL that brings it up."""
    printer = Printer.choose(format, output)
    dossier = open_dossier(find_answer(store, trace, quiet=quiet), ident)
    if printer.for_people:
        printer.blocks([*story(dossier), *findings(dossier), *evidence(dossier), *_queries(dossier, store, trace)])
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
    rows = [[f["verdict"], f["rule"], f["pool"], page_text(f["pages"], 3), f["why"]] for f in dossier.findings]
    return [Table(["verdict", "rule", "pool", "pages", "what"], rows, "What the rules found", ("verdict", "rule"))]


def evidence(dossier: Dossier) -> list[Block]:
    """The proving events and the course of the request; a star where a rule names the event."""
    rows = collapsed(exhibits(dossier), ["source", "event", "pool", "pages", "request", "rules"], "tok", "shows")
    if not rows:
        return []
    shown = _most_telling(rows, dossier)
    pool = next((f["pool"] for f in dossier.findings if f["pool"]), None)
    when, clock = clock_for(row["time_ns"] for row in shown)
    hidden = len(rows) - len(shown)
    more = f"; {several(hidden, 'row')} of others left out, --format json has all" if hidden else ""
    title = f"Evidence{when}{pages_of(pool)}; * a rule names it as proof{more}"
    columns = ["", "time", "source", "seq", "event", "pages", "positions", "request", "shows"]
    whole = ("time", "source") if when.startswith(" on") else ("source",)
    return [Table(columns, [_evidence_row(row, pool, clock) for row in shown], title, whole)]


def _most_telling(rows: list[dict[str, Any]], dossier: Dossier) -> list[dict[str, Any]]:
    """About `SHOWN` rows in their order: all of the request itself, and the largest of the others."""
    own = dossier.request["request"] if dossier.request else None
    others = [n for n, row in enumerate(rows) if row["request"] not in (own, None)]
    room = max(0, SHOWN - (len(rows) - len(others)))
    kept = set(sorted(others, key=lambda n: -size(rows[n]["pages"]))[:room])
    return [row for n, row in enumerate(rows) if n in kept or n not in others]


def size(runs: list[int | list[int]]) -> int:
    """How many pages there are in a compressed list."""
    return sum(1 if isinstance(run, int) else run[1] - run[0] + 1 for run in runs)


def pages_of(pool: str | None) -> str:
    """What to say of a table that leaves the pool out."""
    return f"; pages are those of {pool}" if pool else ""


def _evidence_row(row: dict[str, Any], pool: str | None, clock: Callable[[int], str]) -> list[Any]:
    elsewhere = f"{row['pool']}: " if row["pages"] and row["pool"] != pool else ""
    again = f"; {row['times']} times, until {clock(row['until_ns'])}" if row["until_ns"] else ""
    return [
        "*" if row["rules"] else "",
        clock(row["time_ns"]),
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


def told_findings(dossier: Dossier) -> list[dict[str, Any]]:
    """The findings as the other formats tell them."""
    return [
        {name: finding[name] for name in FINDING_FIELDS} | {"pages": compress_pages(finding["pages"])}
        for finding in dossier.findings
    ]


def _document(dossier: Dossier) -> dict[str, Any]:
    incident, request = dossier.incident, dossier.request
    return {
        "incident": incident["incident"] if incident else None,
        "verdict": dossier.verdict,
        "request": dossier.name,
        "tenant": request["tenant"] if request else incident["tenant"] if incident else None,
        "story": tell(dossier),
        "findings": told_findings(dossier),
        "evidence": exhibits(dossier),
        "sql": [{"question": question, "statement": statement} for question, statement in statements(dossier)],
    }
