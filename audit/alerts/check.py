"""One check: judge what is new, decide, remember, deliver."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from kvwitness import __version__
from kvwitness.audit.alerts import decide, delivery, signals
from kvwitness.audit.alerts.accepted import with_given
from kvwitness.audit.alerts.clock import SECOND_NS, Clock
from kvwitness.audit.alerts.config import Config
from kvwitness.audit.alerts.decide import Outcome
from kvwitness.audit.alerts.delivery import Delivered
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.model import Signal
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.rules import RULES
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store

KEPT_NS = 90 * 86_400 * SECOND_NS
"""How long settled messages and ended alerts stay on record."""


@dataclass
class Report:
    """What one check did."""

    due: int = 0
    """Rules that were looked at."""
    audited: bool = False
    """Whether the store had to be judged: only where something is new in it."""
    failed: str | None = None
    outcome: Outcome = field(default_factory=Outcome)
    delivered: Delivered = field(default_factory=Delivered)
    firing: int = 0
    back_ns: int = 0
    """How far the clock was set back since the check before."""
    behind: str | None = None
    """Why SQL could not be brought up to date."""


def check(
    store: Store, config: Config, clock: Clock, ledger: Ledger, *, jitter: random.Random, every_rule: bool = False
) -> Report:
    """One check. The caller holds the `lease`.

    `every_rule` looks at all rules, whether due or not. A store that cannot be judged does not raise: that becomes an
    alert, and rules stay due.
    """
    report = Report()
    with ledger.transaction():
        report.back_ns = ledger.set_back(clock.now_ns())
    done = ledger.rules_done()
    enabled = [rule for rule in RULES if config.rule(rule).enabled]
    due = [r for r in enabled if every_rule or config.cadence_of(r).due(done.get(r), clock.now_ns())]
    found: list[Signal] = []
    if due:
        report.due = len(due)
        try:
            report.audited = _judged(store, config, ledger)
            found = signals.found(store)
        except Exception as exc:  # whatever it is: that nothing is judged any more must be told
            report.failed = exc.message if isinstance(exc, KvwitnessError) else f"{type(exc).__name__}: {exc}"
            due, found = [], [signals.failed(report.failed)]
    newest = _arrived(store) if config.silent_after_ns is not None else None
    with ledger.transaction():
        now = clock.now_ns()
        config = with_given(config, ledger)
        watching = signals.of_the_watching(config, ledger, now, newest)
        known = found if due or report.failed else _unchanged(store, ledger)
        report.outcome = decide.step(ledger, config, [*known, *watching], due, now)
        mark = _mark(store) if due else 0
        for rule in due:
            ledger.set_done(rule, now, mark)
        ledger.prune(now - KEPT_NS)
    report.delivered = delivery.deliver(ledger, config, clock, jitter)
    delivery.remind(ledger, config, clock)
    if report.failed is None:
        delivery.beat(ledger, config, clock)
    report.firing, report.behind = len(ledger.firing()), ledger.behind
    return report


def _unchanged(store: Store, ledger: Ledger) -> list[Signal]:
    """What was found last, for alerts that fire: nothing of it is looked at anew."""
    return signals.found(store) if ledger.firing() else []


def _judged(store: Store, config: Config, ledger: Ledger) -> bool:
    """Judge the store unless what is kept is the judgement of just these events, by these rules and settings."""
    seen = json.dumps(
        [store.snapshot().marks(), config.parameters.overrides, __version__], sort_keys=True, default=dict
    )
    runs = store.result_runs()
    if runs and ledger.fact("judged") == f"{runs[-1].run_id} {seen}":
        return False
    run = audit_store(store, parameters=config.parameters)
    with ledger.transaction():
        ledger.set_fact("judged", f"{run.run_id} {seen}")
    return True


def _arrived(store: Store) -> int:
    """When the newest event came, as far as is known: not after it was written, whatever time a source gave it."""
    return max((min(s.max_time_ns or 0, s.created_ns) for s in store.segments()), default=0)


def _mark(store: Store) -> int:
    """Time of the newest event on record."""
    return max((segment.max_time_ns or 0 for segment in store.segments()), default=0)
