"""`kvwitness page`: the life of one page."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvwitness.audit.cli.answers import TraceOption, find_answer
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.tables import Table
from kvwitness.audit.history import collapsed, page_history, split_page
from kvwitness.audit.wording import day, moment, several, span_text

app = typer.Typer(add_completion=False)


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
    """Show what happened to one page, in order: who held it, what was written and read, where findings point.

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
    shown = [row for row in rows if row["findings"] or not row["event"].startswith("step.")]
    steps = len(rows) - len(shown)
    shown = collapsed(shown, ["generation", "source", "event", "who", "findings"], "positions")
    printer.blocks([_table(shown, pool, number)] if shown else [])
    hidden = f"; {several(steps, 'step')} not shown" if steps else ""
    say(f"{several(len(rows), 'event')} in {several(len(shown), 'row')}{hidden}", quiet=quiet)


def _table(shown: list[dict[str, Any]], pool: str, number: int) -> Table:
    one_day = len({day(row["time_ns"]) for row in shown}) == 1
    day_of = shown[0]["time_ns"] if one_day else None
    rows, before = [], None
    for row in shown:
        holder = (row["generation"], row["who"])
        rows.append(_row(row, day_of, new=holder != before))
        before = holder if row["who"] else before
    when = f" on {day(shown[0]['time_ns'])}" if one_day else ""
    columns = ["gen", "time", "source", "seq", "event", "who", "positions", "what"]
    return Table(columns, rows, f"Page {number} of {pool}{when}", ("time", "source", "event"))


def _row(row: dict[str, Any], day_of: int | None, *, new: bool) -> list[Any]:
    """`new`: somebody else than in the row before, so that the tenant is said."""
    times = f"{row['times']} times, until {moment(row['until_ns'], day_of=day_of)}" if row["until_ns"] else ""
    found = f"<- {', '.join(row['findings'])}" if row["findings"] else ""
    tenant = row["tenant"] if new and row["tenant"] else ""
    return [
        row["generation"],
        moment(row["time_ns"], day_of=day_of),
        row["source"],
        row["seq"],
        row["event"],
        row["who"],
        span_text(row["positions"]),
        "; ".join(part for part in (tenant, row["note"], times, found) if part),
    ]
