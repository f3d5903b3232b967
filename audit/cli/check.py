"""`kvwitness check` and `kvwitness watch`: evaluate the rules that are due, and deliver what there is to say."""

from __future__ import annotations

import random
import signal
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kvwitness.audit.alerts.cadence import in_words
from kvwitness.audit.alerts.check import Report
from kvwitness.audit.alerts.check import check as run_check
from kvwitness.audit.alerts.clock import SECOND_NS, SystemClock
from kvwitness.audit.alerts.config import Config, load
from kvwitness.audit.alerts.endpoint import endpoint
from kvwitness.audit.alerts.lease import Busy, lease
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.metrics import exposition
from kvwitness.audit.alerts.status import status
from kvwitness.audit.alerts.watch import watch as run_watch
from kvwitness.audit.cli.options import DEFAULT_STORE, FormatOption, OutputOption, QuietOption, StoreOption
from kvwitness.audit.cli.output import Printer, say
from kvwitness.audit.cli.stores import open_store
from kvwitness.audit.wording import several

app = typer.Typer(add_completion=False)
watching = typer.Typer(add_completion=False)

_FIRING, _FAILED = 1, 2
_TOLD_NS = 60 * SECOND_NS
"""From here on it is worth telling that the clock went back; clocks are put right by less all the time."""

ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="KVWITNESS_ALERTS", help="Configuration of alerts.", show_default=True),
]
DEFAULT_CONFIG = Path("kvwitness-alerts.toml")


@app.command("check")
def check(
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = DEFAULT_CONFIG,
    every_rule: Annotated[bool, typer.Option("--all", help="Look at all rules, due or not.")] = False,
    exit_status: Annotated[
        bool,
        typer.Option(
            "--exit-status",
            help="End with status 1 while an alert fires that is neither silenced nor an accepted risk.",
        ),
    ] = False,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Check once: judge what is new, decide, deliver. For cron, systemd timers and Kubernetes CronJobs.

    Status 0 when the check ran and every message is delivered or waits in its queue; 2 when the store could not be
    judged. Where another instance is at work it says so and ends with 0.
    """
    printer = Printer.choose(format, output)
    opened, settings, clock = open_store(store), load(config), SystemClock()
    try:
        with lease(opened, clock.now_ns()), Ledger.of(opened) as ledger:
            report = run_check(opened, settings, clock, ledger, jitter=random.Random(), every_rule=every_rule)
            loud = any(not row.silenced and "accepted" not in row.labels for row in ledger.firing())
    except Busy as busy:
        say(busy.message, quiet=quiet)
        return
    _tell(report, settings, quiet=quiet)
    printer.record(_record(report))
    if report.failed is not None:
        raise typer.Exit(_FAILED)
    if exit_status and loud:
        raise typer.Exit(_FIRING)


@watching.command("watch")
def watch(
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = DEFAULT_CONFIG,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics and /healthz there.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Check whenever something is due, until it is told to stop (SIGTERM, SIGINT)."""
    opened, settings, clock = open_store(store), load(config), SystemClock()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: clock.stop())
    served = endpoint(metrics, lambda: exposition(status(opened))) if metrics else nullcontext()
    with lease(opened, clock.now_ns()), Ledger.of(opened) as ledger, served:
        say(f"watching {opened.path}, {settings.cadence}", quiet=quiet)
        run_watch(
            opened, settings, clock, ledger, jitter=random.Random(), told=lambda r: _tell(r, settings, quiet=quiet)
        )
    say("stopped", quiet=quiet)


def _tell(report: Report, config: Config, *, quiet: bool) -> None:
    """What a person should know of a check; nothing where nothing happened."""
    outcome, delivered = report.outcome, report.delivered
    if report.failed is not None:
        say(f"the store could not be judged: {report.failed}")
    if report.back_ns >= _TOLD_NS:
        say(f"the clock went back by {in_words(report.back_ns)}; what was done later counts as done now")
    if report.behind is not None:
        say(f"the views of alerts in SQL fail until the next change: {report.behind}")
    changes = [(outcome.opened, "opened"), (outcome.updated, "updated"), (outcome.resolved, "resolved")]
    if told := [f"{count:,} {what}" for count, what in changes if count]:
        say(f"alerts: {', '.join(told)}; {report.firing:,} firing", quiet=quiet)
    if delivered.refused:
        say(f"{several(delivered.refused, 'message')} refused: kvwitness alerts deliveries")
    if delivered.waiting:
        say(f"{several(delivered.waiting, 'sink')} not reached; what it missed waits")
    if outcome.unrouted and config.sinks:
        say(f"{several(outcome.unrouted, 'message')} went nowhere: no route takes them")


def _record(report: Report) -> dict[str, Any]:
    return {
        "rules": report.due,
        "audited": report.audited,
        "failed": report.failed,
        "firing": report.firing,
        **asdict(report.outcome),
        **asdict(report.delivered),
    }
