"""`kvwitness tail`: follow the tracer's rings into a store."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.progress import progress
from kvwitness.audit.cli.remarks import remarks
from kvwitness.audit.cli.stores import open_or_create_store
from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE
from kvwitness.collectors.ring_tail import Tail

app = typer.Typer(add_completion=False)

_SUMMARY = ("ring", "source", "events", "lost", "failed", "state")
"""Columns of the table; the other formats hold all."""


@app.command("tail")
def tail(
    directory: Annotated[Path, typer.Argument(metavar="DIR", envvar=DIRECTORY_VARIABLE, help="Where the rings are.")],
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, and end.")] = False,
    poll_every: Annotated[float, typer.Option(min=0.001, help="Look for new events this often, in seconds.")] = 0.1,
    flush_every: Annotated[float, typer.Option(min=0.01, help="Write to the store this often, in seconds.")] = 1.0,
    store: StoreOption = DEFAULT_STORE,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Follow the rings of a tracer into the store, until SIGTERM or SIGINT; then take the rest, and say what came.

    Rings of engines that have ended are removed once all of them is in the store. Killed at any moment, it goes on
    where it was. What was overwritten before it could be read is in the store as telemetry.gap.
    """
    printer = Printer.choose(format, output)
    stopping = _Stopping()
    with Tail(directory, open_or_create_store(store), say=lambda text: say(text, quiet=quiet)) as following:
        if once:
            following.once()
        else:
            with stopping, progress(f"following {directory}", quiet=quiet) as report:
                following.run(
                    lambda: stopping.asked,
                    poll_s=poll_every,
                    flush_s=flush_every,
                    progress=lambda events: report(events, None),
                )
        rows = [followed.to_dict() for followed in following.rings.values()]
        for remark in remarks(following.report):
            say(remark, quiet=quiet)
    for row in rows:
        if row["lost"]:
            say(f"{row['source']}: {row['lost']} events were lost, and are on record as telemetry.gap", quiet=quiet)
        if row["scrubbed"]:
            say(f"{row['source']}: the tracer dropped {row['scrubbed']} values that a trace must not hold", quiet=quiet)
    printer.objects([_shown(row, printer) for row in rows])


def _shown(row: dict[str, Any], printer: Printer) -> dict[str, Any]:
    return {name: row[name] for name in _SUMMARY} if printer.for_people else row


class _Stopping:
    """Within it, SIGTERM and SIGINT are asked for instead of obeyed; a second one is obeyed."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._ask)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True
        signal.signal(number, self._before[number])
