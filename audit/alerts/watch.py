"""Checks, one after the other, for as long as it is wanted."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvwitness.audit.alerts.check import Report, check
from kvwitness.audit.alerts.clock import SECOND_NS, Clock
from kvwitness.audit.alerts.config import Config
from kvwitness.audit.alerts.delivery import REMIND_NS
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Store

RETRY_NS = 30 * SECOND_NS
"""When to look again at a store that could not be judged."""


def watch(
    store: Store,
    config: Config,
    clock: Clock,
    ledger: Ledger,
    *,
    jitter: random.Random,
    told: Callable[[Report], None] = lambda report: None,
) -> None:
    """Check whenever something is due, until the clock says that there is nothing to wait for. The caller holds the
    `lease`."""
    while True:
        report = check(store, config, clock, ledger, jitter=jitter)
        told(report)
        if not clock.wait_until(wake_ns(config, ledger, clock.now_ns(), failed=report.failed is not None)):
            return


def wake_ns(config: Config, ledger: Ledger, now_ns: int, *, failed: bool = False) -> int:
    """When there is something to do again: a rule is due, a message waits, a sink has to hear that all goes on."""
    done = ledger.rules_done()
    enabled = [rule for rule in RULES if config.rule(rule).enabled]
    if failed:
        wishes = [now_ns + RETRY_NS]
    else:
        cadences = {r: config.cadence_of(r) for r in enabled}
        wishes = [now_ns if c.due(done.get(r), now_ns) else c.next_after(done[r]) for r, c in cadences.items()]
    if (waiting := ledger.next_wish_ns()) is not None:
        wishes.append(waiting)
    if config.heartbeat is not None:
        wishes.append(now_ns + config.heartbeat.every_ns)
    if ledger.firing():
        wishes.append(now_ns + REMIND_NS)
    return max(min(wishes, default=now_ns), now_ns + SECOND_NS)
