"""`kvwitness page`: the life of one page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from kvwitness.audit.cli.answers import TraceOption, find_answer
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.tables import Table
from kvwitness.audit.telling.history import collapsed, lives, page_history, split_page
from kvwitness.audit.wording import clock_for, duration, several, span_text

app = typer.Typer(add_completion=False)

SHOWN = 60
"""Rows for a person; a longer history is told by generations."""


@app.command("page")
def page(
    name: Annotated[str, typer.Argument(metavar="POOL/PAGE", help="Such as dec-1/0/full/17.")],
    generation: Annotated[
        int | None, typer.Option("--generation", "-g", help="Only this generation of the page.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    trace: TraceOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Show the life of one page: holders, writes, reads, and where findings point.

    The generation counts the page's allocations on record, unless the source states it.
    """
    printer = Printer.choose(format, output)
    pool, number = split_page(name)
    rows = page_history(find_answer(store, trace, quiet=quiet, required=False), pool, number)
    if generation is not None:
        rows = [row for row in rows if row["generation"] == generation]
    if not printer.for_people:
        printer.objects(rows)
        return
    title = f"Page {number} of {pool}"
    # Steps name every page that is in use; they say nothing of this one unless a finding does.
    telling = [row for row in rows if row["findings"] or not row["event"].startswith("step.")]
    shown = collapsed(telling, ["generation", "source", "event", "who", "findings"], "positions")
    if len(shown) <= SHOWN:
        printer.blocks([_events(shown, title)] if shown else [])
        steps = len(rows) - len(telling)
        hidden = f"; {several(steps, 'step')} not shown" if steps else ""
    else:
        printer.blocks([_generations(lives(rows), title)])
        hidden = "; --generation N shows the events of one"
    say(f"{several(len(rows), 'event')}{hidden}", quiet=quiet)


def _events(shown: list[dict[str, Any]], title: str) -> Table:
    when, clock = clock_for(row["time_ns"] for row in shown)
    rows, before = [], None
    for row in shown:
        holder = (row["generation"], row["who"])
        rows.append(_event(row, clock, new=holder != before))
        before = holder if row["who"] else before
    columns = ["gen", "time", "source", "seq", "event", "who", "positions", "what"]
    return Table(columns, rows, f"{title}{when}", ("time", "source"))


def _event(row: dict[str, Any], clock: Callable[[int], str], *, new: bool) -> list[Any]:
    """`new`: somebody else than in the row before, so that the tenant is said."""
    times = f"{row['times']} times, until {clock(row['until_ns'])}" if row["until_ns"] else ""
    tenant = row["tenant"] if new and row["tenant"] else ""
    return [
        row["generation"],
        clock(row["time_ns"]),
        row["source"],
        row["seq"],
        row["event"],
        row["who"],
        span_text(row["positions"]),
        "; ".join(part for part in (tenant, row["note"], times, _mark(row["findings"])) if part),
    ]


def _generations(rows: list[dict[str, Any]], title: str) -> Table:
    when, clock = clock_for(row["from_ns"] for row in rows)
    shown = [
        [
            row["generation"],
            clock(row["from_ns"]),
            duration(row["until_ns"] - row["from_ns"]),
            row["who"],
            row["tenant"],
            row["events"],
            _mark(row["findings"]),
        ]
        for row in rows
    ]
    columns = ["gen", "from", "for", "who", "tenant", "events", "findings"]
    return Table(columns, shown, f"{title}{when}, one row per generation", ("from", "for"))


def _mark(findings: list[str]) -> str:
    """Where findings point, the strongest in words and the rest as their number."""
    if not findings:
        return ""
    return f"<- {findings[0]}" + (f" +{len(findings) - 1}" if len(findings) > 1 else "")
