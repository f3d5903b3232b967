"""`kvwitness store`: look at a store, tidy it, check it, let old records go."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import polars as pl
import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, confirm, say
from kvwitness.audit.cli.stores import open_store, tenant_name
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Pseudonyms, Store
from kvwitness.audit.wording import second, several

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The store: look, tidy, check, let go.")

_FOUND = 1
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PROBLEM = pl.Schema(
    {
        "severity": pl.String(),
        "kind": pl.String(),
        "name": pl.String(),
        "message": pl.String(),
        "advice": pl.String(),
    }
)


@app.command()
def info(store: StoreOption = DEFAULT_STORE, format: FormatOption = None, output: OutputOption = None) -> None:
    """Say what is in the store: rows, bytes, times, sources, imports, losses."""
    Printer.choose(format, output).record(open_store(store).info())


@app.command()
def compact(
    store: StoreOption = DEFAULT_STORE,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while another process maintains it.")] = False,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Merge small segments; collectors and readers may go on. Status 1 when damaged ones were left alone."""
    printer = Printer.choose(format, output)
    done = open_store(store).compact(wait=wait)
    damaged = [str(segment) for segment in done.damaged]
    printer.record(
        {
            "merged": done.merged,
            "into": done.into,
            "rows": done.rows,
            "bytes_before": done.bytes_before,
            "bytes_after": done.bytes_after,
            "files_removed": done.files_removed,
            "leftovers": asdict(done.leftovers),
            "crowded": done.crowded,
            "damaged": damaged,
        }
    )
    for message in damaged:
        say(message, quiet=quiet)
    if done.crowded:
        said = "The newest live segments were left for later: too many folders of replaced ones wait for their grace."
        say(said, quiet=quiet)
    if damaged:
        raise typer.Exit(_FOUND)


@app.command()
def verify(
    store: StoreOption = DEFAULT_STORE,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Move damaged segments aside, and put the loss on record.")
    ] = False,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Check every byte. Status 1 when something is missing, doubled or damaged."""
    printer = Printer.choose(format, output)
    opened = open_store(store)
    if quarantine:
        for moved in opened.quarantine():
            say(f"{moved.name} moved to {moved.moved_to}: {moved.reason}", quiet=quiet)
    problems = opened.verify()
    printer.rows(pl.DataFrame([asdict(problem) for problem in problems], schema=_PROBLEM))
    errors = sum(problem.severity == "error" for problem in problems)
    say(f"{errors} errors, {len(problems) - errors} notes", quiet=quiet)
    if errors:
        raise typer.Exit(_FOUND)


@app.command()
def publish(store: StoreOption = DEFAULT_STORE) -> None:
    """Build store.duckdb anew, after the store was moved or the file was lost."""
    open_store(store).publish()


@app.command()
def migrate(store: StoreOption = DEFAULT_STORE, format: FormatOption = None, output: OutputOption = None) -> None:
    """Bring a store of an older version up to date. Stop its collectors and make a backup first."""
    Printer.choose(format, output).record(asdict(Store.migrate(store)))


class Notes(StrEnum):
    """What becomes of notes that name a tenant."""

    TELL = "tell"
    REDACT = "redact"
    PSEUDONYMISE = "pseudonymise"


@app.command()
def retain(
    store: StoreOption = DEFAULT_STORE,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Remove everything of this tenant, at once.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Remove what is older, such as 90d, 12h or 4w.")
    ] = None,
    notes: Annotated[
        Notes,
        typer.Option(
            "--notes",
            help="With --tenant: what to do with notes about incidents that name it. tell: say which they are.",
        ),
    ] = Notes.TELL,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Remove events for good, and say how many."""
    printer = Printer.choose(format, output)
    opened = open_store(store)
    before = None if older_than is None else time.time_ns() - _seconds(older_than) * 1_000_000_000
    if not yes:
        what = f"tenant {tenant}" if tenant else f"everything older than {older_than}"
        confirm(f"Remove {what} from {opened.path} for good?")
    removal = opened.retain(tenant=tenant, older_than_ns=before)
    if tenant is not None:
        from kvwitness.audit.alerts.ledger import Ledger
        from kvwitness.audit.alerts.ledger_file import directory

        if directory(opened).exists():
            with Ledger.of(opened) as ledger, ledger.transaction():
                ledger.forget(tenant_name(tenant))
        printer.record(asdict(removal) | _in_notes(opened, tenant, notes))
        return
    printer.record(asdict(removal))


def _in_notes(store: Store, tenant: str, wanted: Notes) -> dict[str, int]:
    """Look for a tenant in the notes, and do with its name what is wanted; counts what was found and changed."""
    key = Pseudonyms.from_environment()
    names = {tenant, tenant_name(tenant)}
    found = store.casebook.naming(names)
    changed = 0
    if wanted is Notes.REDACT:
        changed = store.casebook.rename(names, "[removed]")
    elif wanted is Notes.PSEUDONYMISE:
        # Without a key for the name it is one of a key that nobody keeps: it is the same in all notes, and no more.
        linkable = key if key is not None and not key.made(tenant) else Pseudonyms.random()
        changed = store.casebook.rename(names, linkable.of(tenant))
    for note in found.to_dicts():
        say(f"a note on {note['incident']} by {note['by']}, {second(note['at_ns'])}, names the tenant")
    if len(found) and not changed:
        say(f"{several(len(found), 'note')} left as written; --notes redact or pseudonymise takes the name out")
    return {"notes_naming_it": len(found), "notes_changed": changed}


def _seconds(duration: str) -> int:
    """The length of a duration such as 90d."""
    found = re.fullmatch(r"(\d+)([smhdw])", duration)
    if found is None:
        raise KvwitnessError(f"{duration!r} is not a duration.", "Write a number and one of s, m, h, d, w: 90d, 12h.")
    return int(found[1]) * _SECONDS[found[2]]
