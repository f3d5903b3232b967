"""`kvwitness request`: everything on record about one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from kvwitness.audit.cli.answers import TraceOption, find_answer
from kvwitness.audit.cli.explain import findings, pages_of, told_findings
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer
from kvwitness.audit.cli.tables import Block, Prose, Table
from kvwitness.audit.overall.overview import MEANING
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.dossier import Dossier, open_request
from kvwitness.audit.telling.history import collapsed, holdings, timeline
from kvwitness.audit.telling.traces import traces_of
from kvwitness.audit.trace import compress_pages
from kvwitness.audit.wording import clock_for, moment, page_text, runs_text, span_text

app = typer.Typer(add_completion=False)

SHOWN = 100
"""Rows of a timeline for a person."""
_FACTS = {
    "tenant": "tenant",
    "traffic": "traffic",
    "model": "model",
    "adapter": "adapter",
    "prompt_tokens": "prompt tokens, as received",
    "max_new_tokens": "most tokens to generate",
    "rejected_source": "first refused by",
    "aborted_source": "first aborted by",
    "status": "status of the final answer",
    "finish_reason": "finish reason",
    "answered_prompt_tokens": "prompt tokens, as answered",
    "completion_tokens": "completion tokens",
    "answered_by": "answered by",
}


@app.command("request")
def request(
    ident: Annotated[
        str,
        typer.Argument(metavar="ID", help="The request, or its trace id; ID#1 is its second life under the same id."),
    ],
    store: StoreOption = DEFAULT_STORE,
    trace: TraceOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show one request: verdict, findings, pages held, what every source recorded."""
    printer = Printer.choose(format, output)
    answer = find_answer(store, trace, quiet=quiet, required=False)
    dossier = open_request(answer, ident)
    if printer.for_people:
        printer.blocks([*_head(dossier, answer), *findings(dossier), *_held(dossier), *_timeline(dossier)])
    else:
        printer.record(_document(dossier, answer))


def _verdict(dossier: Dossier, answer: Answer) -> str | None:
    return dossier.verdict if answer.judged else None


def _head(dossier: Dossier, answer: Answer) -> list[Block]:
    verdict = _verdict(dossier, answer)
    said = f"{verdict} - {MEANING[verdict]}" if verdict else "not judged yet"
    if dossier.missing:
        said += f"; not on record: {dossier.missing}"
    row = dossier.request or {}
    facts = [[label, row[name]] for name, label in _FACTS.items() if row.get(name) is not None]
    if traces := traces_of(dossier.own):
        facts.append(["trace id (OpenTelemetry)", ", ".join(traces)])
    if dossier.incident:
        facts.insert(0, ["incident", dossier.incident["incident"]])
    return [Prose(f"Request {dossier.name}: {said}", heading=True), Table(["", ""], facts)]


def _held(dossier: Dossier) -> list[Block]:
    held = holdings(dossier)
    if held.is_empty():
        return [Prose("That it held any page is not on record.")]
    rows = [
        [
            row["pool"],
            len(row["pages"]),
            page_text(row["pages"], 4),
            row["how"],
            moment(row["from_ns"]),
            moment(row["until_ns"], day_of=row["from_ns"]) if row["until_ns"] else "not on record",
            row["released"],
        ]
        for row in held.iter_rows(named=True)
    ]
    columns = ["pool", "pages", "which", "how", "from", "until", "released"]
    return [Table(columns, rows, "Pages it held", ("pool",))]


def _timeline(dossier: Dossier) -> list[Block]:
    rows = collapsed(timeline(dossier), ["source", "event", "pool", "findings"], "tok")
    if not rows:
        return []
    shown = rows[:SHOWN]
    pools = [row["pool"] for row in shown if row["pages"]]
    pool = max(pools, key=pools.count, default=None)
    when, clock = clock_for(row["time_ns"] for row in shown)
    more = f"; the first {SHOWN} of {len(rows)} rows, --format json has all" if len(rows) > SHOWN else ""
    title = f"What was recorded{when}{pages_of(pool)}; * a rule names it as proof{more}"
    columns = ["", "time", "source", "seq", "event", "pages", "positions", "what"]
    return [Table(columns, [_timeline_row(row, pool, clock) for row in shown], title, ("time", "source"))]


def _timeline_row(row: dict[str, Any], pool: str | None, clock: Callable[[int], str]) -> list[Any]:
    elsewhere = f"{row['pool']}: " if row["pages"] and row["pool"] != pool else ""
    again = f"{row['times']} times, until {clock(row['until_ns'])}" if row["until_ns"] else ""
    return [
        "*" if row["findings"] else "",
        clock(row["time_ns"]),
        row["source"],
        row["seq"],
        row["event"],
        f"{elsewhere}{runs_text(row['pages'], 3)}",
        span_text(row["tok"]),
        "; ".join(part for part in (row["note"], again) if part),
    ]


def _document(dossier: Dossier, answer: Answer) -> dict[str, Any]:
    row = dossier.request or {}
    return {
        "request": dossier.name,
        "verdict": _verdict(dossier, answer),
        "missing": dossier.missing,
        "incident": dossier.incident["incident"] if dossier.incident else None,
        **{name: row.get(name) for name in _FACTS},
        "trace_ids": traces_of(dossier.own),
        "findings": told_findings(dossier),
        "pages": [row | {"pages": compress_pages(row["pages"])} for row in holdings(dossier).to_dicts()],
        "timeline": timeline(dossier),
    }
