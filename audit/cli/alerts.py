"""`kvwitness alerts`: what fires, what was sent, and what people do about it."""

from __future__ import annotations

import getpass
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

import polars as pl
import typer

from kvwitness.audit.alerts import decide
from kvwitness.audit.alerts.cadence import duration_ns
from kvwitness.audit.alerts.clock import SystemClock
from kvwitness.audit.alerts.config import load
from kvwitness.audit.alerts.lease import lease
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Conditions
from kvwitness.audit.alerts.metrics import exposition
from kvwitness.audit.alerts.model import TEST, Notice
from kvwitness.audit.alerts.operations import OPERATIONS
from kvwitness.audit.alerts.patience import patience
from kvwitness.audit.alerts.sinks import sink_kinds
from kvwitness.audit.alerts.sinks.model import Refused, Unreachable
from kvwitness.audit.alerts.status import status
from kvwitness.audit.cli.acceptances import ConditionsArgument, accept, accepted, list_acceptances, unaccept
from kvwitness.audit.cli.check import DEFAULT_CONFIG, ConfigOption
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.rules import RULES
from kvwitness.audit.wording import moment

app = typer.Typer(no_args_is_help=True, help="What fires, what was sent, and what people do about it.")

_FAILED = 1

WhoOption = Annotated[str | None, typer.Option("--by", help="Who; default: the user who runs the command.")]


@app.command("list")
def list_alerts(
    store: StoreOption = DEFAULT_STORE,
    every: Annotated[bool, typer.Option("--all", help="Those that are over as well.")] = False,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """List the alerts that fire, the newest first."""
    rows = status(open_store(store)).alerts
    shown = rows if every else rows.filter(pl.col("state") == "firing")
    printer = Printer.choose(format, output)
    if printer.for_people:
        shown = shown.select(
            "alert",
            "severity",
            "title",
            "incidents",
            pl.when("silenced").then(pl.lit("silenced")).otherwise("state").alias("state"),
            opened=pl.col("opened_ns").map_elements(moment, return_dtype=pl.String),
        )
    printer.rows(shown)


@app.command("deliveries")
def list_deliveries(
    store: StoreOption = DEFAULT_STORE, format: FormatOption = None, output: OutputOption = None
) -> None:
    """List what was sent, what waits and what was refused, the newest first."""
    Printer.choose(format, output).rows(status(open_store(store)).deliveries)


@app.command("sinks")
def list_sinks(store: StoreOption = DEFAULT_STORE, format: FormatOption = None, output: OutputOption = None) -> None:
    """Show how delivery to each sink goes."""
    Printer.choose(format, output).rows(status(open_store(store)).sinks)


@app.command("status")
def print_status(
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = DEFAULT_CONFIG,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Say at a glance whether checks run, alerts fire, and messages and heartbeats arrive; and which risks are
    accepted. A configuration that is not there is left out."""
    opened = open_store(store)
    told = status(opened)
    firing = told.alerts.filter(pl.col("state") == "firing")
    newest = told.rules["done_ns"].max()
    now = SystemClock().now_ns()
    Printer.choose(format, output).record(
        {
            "checked": moment(newest) if isinstance(newest, int) else None,
            "firing": len(firing),
            "silenced": int(firing["silenced"].sum()),
            "accepted": int(firing["accepted"].is_not_null().sum()),
            "messages waiting": int(told.sinks["waiting"].sum()),
            "sinks": _reached(told.sinks, "sink"),
            "heartbeats": _reached(told.heartbeats, "target"),
            "acceptances": accepted(opened, config, now),
        }
    )


def _reached(rows: pl.DataFrame, name: str) -> list[dict[str, Any]]:
    return [
        {
            name: row[name],
            "state": "fails" if row["failing_since_ns"] else "arrives",
            "failing since": moment(row["failing_since_ns"]) if row["failing_since_ns"] else None,
            "arrived last": moment(row["ok_ns"]) if row["ok_ns"] else None,
            "error": row["error"],
        }
        for row in rows.iter_rows(named=True)
    ]


@app.command("metrics")
def print_metrics(store: StoreOption = DEFAULT_STORE) -> None:
    """Print the state of the alerts in the text format of Prometheus, for a textfile collector."""
    typer.echo(exposition(status(open_store(store))), nl=False)


@app.command("publish")
def publish(store: StoreOption = DEFAULT_STORE, quiet: QuietOption = False) -> None:
    """Bring the views of alerts in store.duckdb up to date, where a check was killed while it changed something."""
    with Ledger.of(open_store(store)) as ledger:
        if ledger.behind is not None:
            raise KvwitnessError(f"The views of alerts stay behind: {ledger.behind}", "Put that right, then try again.")
    say("the views of alerts are up to date", quiet=quiet)


@app.command("kinds")
def list_kinds(format: FormatOption = None, output: OutputOption = None) -> None:
    """List the kinds of sinks that there are."""
    rows = [{"type": kind.name, "about": kind.about} for kind in sink_kinds().values()]
    Printer.choose(format, output).rows(pl.DataFrame(rows))


@app.command("example")
def example() -> None:
    """Print a configuration to begin with."""
    typer.echo((files("kvwitness.audit.alerts") / "example.toml").read_text(encoding="utf-8"), nl=False)


@app.command("test")
def send_test(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="Name of a route of the configuration.")],
    config: ConfigOption = DEFAULT_CONFIG,
    quiet: QuietOption = False,
) -> None:
    """Send a marked test message to every sink of a route; status 1 when one does not take it."""
    settings = load(config)
    chosen = next((one for one in settings.routes if one.name == route), None)
    if chosen is None:
        names = ", ".join(one.name for one in settings.routes)
        raise KvwitnessError(f"There is no route {route!r}.", f"Routes: {names}." if names else "There are none.")
    now, failed = SystemClock().now_ns(), 0
    for name in chosen.sinks:
        try:
            sink = settings.sinks[name]
            patience.call(sink, partial(sink.deliver, _test(route, now, settings.runbook)))
        except (Unreachable, Refused) as exc:
            failed += 1
            say(f"{name}: {exc}")
        else:
            say(f"{name}: delivered", quiet=quiet)
    if failed:
        raise typer.Exit(_FAILED)


def _test(route: str, now_ns: int, runbook: str) -> Notice:
    return Notice(
        key=f"test/{now_ns}", alert="al-test", episode=1, version=1, status=TEST, severity="info",
        previous_severity=None, verdict="test", labels={"route": route}, title=f"Test of the route {route}",
        summary="This is a test. Nothing was found, and nothing has to be done.", incidents=0, new_incidents=0,
        findings=0, tenants=0, rules=(), sample=(), first_ns=0, last_ns=0, opened_ns=now_ns, said_ns=now_ns,
        ended_ns=None, runbook=runbook.replace("{rule}", ""), link=None,
    )  # fmt: skip


@app.command("silence")
def silence(
    conditions: ConditionsArgument,
    lasting: Annotated[str, typer.Option("--for", help="How long, such as 2h; at most 30d.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    by: WhoOption = None,
    store: StoreOption = DEFAULT_STORE,
    quiet: QuietOption = False,
) -> None:
    """Tell nobody of some alerts for a time. They are kept, and told if they still fire at its end."""
    try:
        wanted, lasts = Conditions.of(conditions), duration_ns(lasting)
        wanted.check([*RULES, *OPERATIONS])
        if not lasts:
            raise ValueError(f"{lasting!r} is no time at all")
    except ValueError as exc:
        raise KvwitnessError(f"{exc}.", "kvwitness alerts silence engine=dec-1 --for 2h --reason upgrade") from None
    if lasts > duration_ns("30d"):
        raise KvwitnessError("A silence lasts at most 30d.", "For longer, accept the risk: `kvwitness alerts accept`.")
    opened, now = open_store(store), SystemClock().now_ns()
    row = {
        "id": f"si-{now // 1_000_000:x}",
        "conditions": {name: list(values) for name, values in wanted.values.items()},
        "owner": by or getpass.getuser(),
        "reason": reason,
        "from_ns": now,
        "until_ns": now + lasts,
    }
    with Ledger.of(opened) as ledger, ledger.transaction():
        ledger.set_silence(row)
    say(f"silence {row['id']} until {moment(now + lasts)}", quiet=quiet)


for name, command in (("accept", accept), ("acceptances", list_acceptances), ("unaccept", unaccept)):
    app.command(name)(command)


@app.command("silences")
def list_silences(store: StoreOption = DEFAULT_STORE, format: FormatOption = None, output: OutputOption = None) -> None:
    """List the silences that were set by command."""
    with Ledger.of(open_store(store)) as ledger:
        Printer.choose(format, output).objects(ledger.silences(), columns=["id", "owner", "until_ns", "reason"])


@app.command("unsilence")
def unsilence(
    silence: Annotated[str, typer.Argument(metavar="SILENCE", help="Id of the silence.")],
    store: StoreOption = DEFAULT_STORE,
    quiet: QuietOption = False,
) -> None:
    """End a silence now."""
    now = SystemClock().now_ns()
    with Ledger.of(open_store(store)) as ledger, ledger.transaction():
        found = [row for row in ledger.silences() if row["id"] == silence]
        if not found:
            raise KvwitnessError(f"There is no silence {silence!r}.", "`kvwitness alerts silences` lists them.")
        ledger.set_silence(found[0] | {"until_ns": min(now, found[0]["until_ns"])})
    say(f"silence {silence} is over", quiet=quiet)


@app.command("resolve")
def resolve(
    alert: Annotated[str, typer.Argument(metavar="ALERT", help="Id of the alert.")],
    by: WhoOption = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = DEFAULT_CONFIG,
    quiet: QuietOption = False,
) -> None:
    """End an alert by hand. With the next news it opens again. The next check tells the sinks."""
    opened, now = open_store(store), SystemClock().now_ns()
    with lease(opened, now), Ledger.of(opened) as ledger, ledger.transaction():
        if not decide.resolve_by_hand(ledger, load(config), alert, by or getpass.getuser(), now):
            raise KvwitnessError(f"No alert {alert!r} fires.", "`kvwitness alerts list` lists those that do.")
    say(f"alert {alert} is over", quiet=quiet)
