"""`kvwitness alerts accept`, `acceptances`, `unaccept`: risks that somebody takes upon themselves until a day."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from kvwitness.audit.alerts.accepted import given_in
from kvwitness.audit.alerts.cadence import duration_ns
from kvwitness.audit.alerts.clock import SECOND_NS, SystemClock
from kvwitness.audit.alerts.config import accepted_risks
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Conditions
from kvwitness.audit.alerts.model import SEVERITIES
from kvwitness.audit.alerts.operations import OPERATIONS
from kvwitness.audit.alerts.reading import LAST_YEAR, LONGEST_NS
from kvwitness.audit.cli.check import DEFAULT_CONFIG, ConfigOption
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Store
from kvwitness.audit.wording import moment

ConditionsArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME=VALUE...", help="verdict, rule, engine, tenant or incident; * is allowed."),
]
"""Which alerts are meant."""


def accept(
    conditions: ConditionsArgument,
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
        if warn_ns > LONGEST_NS:
            raise ValueError(f"{warn_before!r} is longer than a hundred years")
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
        told = datetime.combine(day, time()) if day == date.max else datetime.combine(day + timedelta(days=1), time())
    if told.year > LAST_YEAR:
        raise ValueError(f"{text} is later than {LAST_YEAR}, the last year that a record can hold")
    return int((told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()) * SECOND_NS


def list_acceptances(
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = DEFAULT_CONFIG,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """List the accepted risks: those given by command, and those of the configuration where there is one."""
    columns = ["id", "state", "about", "accepted_by", "until", "severity", "reason", "from"]
    found = accepted(open_store(store), config, SystemClock().now_ns())
    Printer.choose(format, output).objects(found, columns=columns)


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


def accepted(store: Store, config: Path, now_ns: int) -> list[dict[str, Any]]:
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
