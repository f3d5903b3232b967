"""`kvwitness note`: what people say about an incident and do with it, kept for good."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.cli.tables import Table
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Deed
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.wording import second

app = typer.Typer(add_completion=False)


@app.command("note")
def note(
    ident: Annotated[str, typer.Argument(metavar="ID", help="An incident, by its id or the beginning of it.")],
    text: Annotated[str, typer.Argument(help="The note or the reason: ids and facts, no content of prompts.")] = "",
    deed: Annotated[
        Deed | None, typer.Option("--do", help="What you do with it. With a text alone: note.", show_default=False)
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="WHO", help="To whom it is assigned.")] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="WHO", help="Who you are. Default: the name of your login.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Acknowledge, assign, close or reopen an incident, or write a note; without a text, show what was written.

    Entries are never changed. An incident that was closed and that later audits find changed counts as open again.
    """
    opened = open_store(store)
    found = Answer.of_store(opened).incident(ident)
    if found is None:
        raise KvwitnessError(
            f"There is no incident {ident!r} in the newest audit.", "`kvwitness incidents` lists the incidents."
        )
    name = str(found["incident"])
    if text or deed is not None or to is not None:
        wanted = deed or (Deed.ASSIGN if to else Deed.NOTE)
        entry = opened.casebook.add(
            name,
            wanted,
            by=by or getpass.getuser(),
            text=text,
            assignee=to,
            verdict=found["verdict"],
            findings=found["findings"],
        )
        say(f"{name}: {entry.deed} by {entry.by}, {second(entry.at_ns)}", quiet=quiet)
        return
    entries = opened.casebook.entries(name)
    printer = Printer.choose(format, output)
    if not printer.for_people:
        printer.rows(entries)
    elif len(entries):
        rows = [[second(e["at_ns"]), e["by"], e["deed"], e["assignee"], e["text"]] for e in entries.to_dicts()]
        printer.blocks([Table(["when", "who", "what", "to", "text"], rows, f"Notes on {name}")])
    say(f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}", quiet=quiet)
