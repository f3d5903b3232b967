"""`kvwitness alerts`: what fires, what was sent, and what people do about it."""

from __future__ import annotations

import getpass
from datetime import UTC, date, datetime, time, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from kvwitness.audit.alerts import decide
from kvwitness.audit.alerts.accepted import given_in
from kvwitness.audit.alerts.cadence import duration_ns
from kvwitness.audit.alerts.clock import SECOND_NS, SystemClock
from kvwitness.audit.alerts.config import accepted_risks, load
from kvwitness.audit.alerts.lease import lease
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Conditions
from kvwitness.audit.alerts.metrics import exposition
from kvwitness.audit.alerts.model import SEVERITIES, TEST, Notice
from kvwitness.audit.alerts.operations import OPERATIONS
from kvwitness.audit.alerts.sinks import sink_kinds
from kvwitness.audit.alerts.sinks.model import Refused, Unreachable
from kvwitness.audit.alerts.status import status
from kvwitness.audit.cli.check import DEFAULT_CONFIG, ConfigOption
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Store
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
            "acceptances": _accepted(opened, config, now),
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


def _accepted(store: Store, config: Path, now_ns: int) -> list[dict[str, Any]]:
    """All risk acceptances, those of the configuration first."""
    named = [(one, str(config)) for one in (accepted_risks(config) if config.exists() else ())]
    return [
        {
            "id": one.id,
            "state": "holds" if now_ns < one.until_ns else "has ended",
            "about": one.match.in_words(),
            "accepted_by": one.accepted_by,
            "until": moment(one.until_ns),
            "severity": one.severity,
            "reason": one.reason,
            "from": origin,
        }
        for one, origin in [*named, *((one, "command") for one in given_in(store))]
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
            settings.sinks[name].deliver(_test(route, now, settings.runbook))
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
    conditions: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="verdict, rule, engine, tenant or incident; * is allowed."),
    ],
    lasting: Annotated[str, typer.Option("--for", help="How long, such as 2h; at most 30d.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    by: WhoOption = None,
    store: StoreOption = DEFAULT_STORE,
    quiet: QuietOption = False,
) -> None:
    """Tell nobody of some alerts for a time. They are kept, and told if they still fire at its end."""
    try:
        wanted, lasts = Conditions.of(conditions), duration_ns(lasting)
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


@app.command("accept")
def accept(
    conditions: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="verdict, rule, engine, tenant or incident; * is allowed."),
    ],
    until: Annotated[str, typer.Option("--until", help="Its last day, or a time (UTC): 2027-03-31.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    by: Annotated[str, typer.Option("--by", help="Who takes the risk upon themselves.")],
    severity: Annotated[str, typer.Option("--severity", help="Of the alerts that it covers.")] = "info",
    warn_before: Annotated[str, typer.Option("--warn-before", help="How long before its end to warn.")] = "14d",
    store: StoreOption = DEFAULT_STORE,
    quiet: QuietOption = False,
) -> None:
    """Accept a risk until a date: what it covers becomes an alert of its own, of the severity that is said. It is
    still found by every audit, and its end is an alert."""
    try:
        wanted, warn_ns, until_ns = Conditions.of(conditions), duration_ns(warn_before), _end(until)
        wanted.check([*RULES, *OPERATIONS])
    except ValueError as exc:
        raise KvwitnessError(
            f"{exc}.",
            "kvwitness alerts accept rule=capacity-drift engine=pf-1 --until 2027-03-31 --by NAME --reason WHY",
        ) from None
    now = SystemClock().now_ns()
    if severity not in SEVERITIES:
        raise KvwitnessError(f"{severity!r} is no severity.", f"Severities: {', '.join(SEVERITIES)}.")
    if until_ns <= now:
        raise KvwitnessError(f"{until} is over.", "Give a day to come; a risk is accepted until some day.")
    row = {
        "id": f"ra-{now // 1_000_000:x}",
        "conditions": {name: list(values) for name, values in wanted.values.items()},
        "accepted_by": by,
        "reason": reason,
        "severity": severity,
        "made_ns": now,
        "until_ns": until_ns,
        "warn_ns": warn_ns,
    }
    with Ledger.of(open_store(store)) as ledger, ledger.transaction():
        ledger.set_acceptance(row)
    say(f"risk {row['id']} accepted by {by} until {moment(until_ns)}; the next check acts on it", quiet=quiet)


def _end(text: str) -> int:
    """The end of a day, or a time, in UTC. Raises ValueError."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        try:
            told = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is no day and no time, such as 2027-03-31 or 2027-03-31T18:00:00Z") from None
    else:
        told = datetime.combine(day + timedelta(days=1), time())
    return int((told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()) * SECOND_NS


@app.command("acceptances")
def list_acceptances(
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = DEFAULT_CONFIG,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """List the accepted risks: those given by command, and those of the configuration where there is one."""
    columns = ["id", "state", "about", "accepted_by", "until", "severity", "reason", "from"]
    found = _accepted(open_store(store), config, SystemClock().now_ns())
    Printer.choose(format, output).objects(found, columns=columns)


@app.command("unaccept")
def unaccept(
    acceptance: Annotated[str, typer.Argument(metavar="ID", help="Id of the acceptance.")],
    store: StoreOption = DEFAULT_STORE,
    quiet: QuietOption = False,
) -> None:
    """Take the acceptance of a risk back that was given by command: its alerts return with their own severity."""
    with Ledger.of(open_store(store)) as ledger, ledger.transaction():
        if not ledger.drop_acceptance(acceptance):
            raise KvwitnessError(
                f"There is no acceptance {acceptance!r} that was given by command.",
                "`kvwitness alerts acceptances` lists them; those of a configuration are ended there.",
            )
    say(f"risk {acceptance} is not accepted any more", quiet=quiet)


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
