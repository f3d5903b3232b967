"""What there is to alert on: the incidents of the newest audit, and what is wrong with the watching itself."""

from __future__ import annotations

from collections.abc import Iterator

from kvwitness.audit.alerts.cadence import in_words
from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.config import BEAT_FILE, Acceptance, Config
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.model import OPERATION, OPERATION_PREFIX, Signal
from kvwitness.audit.overall.standing import standings
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Casebook, Store, StoreError
from kvwitness.audit.wording import moment

FAILING_NS = 600 * SECOND_NS
"""A sink that fails for so long is an alert of its own."""


def found(store: Store) -> list[Signal]:
    """The incidents of the newest audit with what people did with them; none before the first.

    Where the notes cannot be read, all incidents count as open, and a signal says so: no alert must wait for notes.
    """
    if not store.result_runs():
        return []
    signals = []
    try:
        notes = store.casebook.entries()
    except StoreError as exc:
        signals.append(_operation("notes-unreadable", "", f"Closed incidents count as open: {exc.message}"))
        notes = Casebook.no_entries()
    for row in standings(store.result("incidents"), notes).iter_rows(named=True):
        pools = [pool["pool"] for pool in row["pools"] or [] if pool["pool"]]
        tenants = {name for name in [row["tenant"], *row["other_tenants"]] if name is not None}
        signals.append(
            Signal(
                id=row["incident"],
                verdict=row["verdict"],
                rules=tuple(row["rules"]),
                request=row["request"],
                tenant=row["tenant"],
                tenants=frozenset(tenants),
                # The engine whose pages it is about: of a prefill and a decode engine, the one that read.
                engine=pools[0].split("/")[0] if pools and row["request"] else row["engine"],
                first_ns=row["first_ns"] or 0,
                last_ns=row["last_ns"] or 0,
                findings=row["findings"],
                lasting=row["request"] is None and all(RULES[rule].lasting for rule in row["rules"] if rule in RULES),
                standing=row["standing"],
                standing_by=row["standing_by"],
                assignee=row["assignee"],
            )
        )
    return signals


def of_the_watching(config: Config, ledger: Ledger, now_ns: int, newest_ns: int | None) -> list[Signal]:
    """What is wrong with checks, deliveries and acceptances, as of now. `newest_ns`: time of the newest event."""
    return [
        *_missed(config, ledger, now_ns),
        *_undelivered(ledger, now_ns),
        *_unheard(config, ledger, now_ns),
        *_silent(config, now_ns, newest_ns),
        *(signal for acceptance in config.acceptances for signal in _ending(acceptance, now_ns)),
    ]


def failed(why: str) -> Signal:
    """A check that could not judge the store."""
    return _operation("check-failed", "", why)


def _operation(name: str, what: str, said: str, last_ns: int = 0) -> Signal:
    return Signal(
        f"{OPERATION_PREFIX}{name}{f'-{what}' if what else ''}",
        OPERATION,
        (name,),
        last_ns=last_ns,
        lasting=True,
        said=said,
    )


def _missed(config: Config, ledger: Ledger, now_ns: int) -> Iterator[Signal]:
    """The check that was due longest ago, if that is too long."""
    due = [
        config.cadence_of(rule).next_after(done)
        for rule, done in ledger.rules_done().items()
        if config.rule(rule).enabled
    ]
    if due and now_ns > min(due) + config.missed_after_ns:
        late = in_words(now_ns - min(due))
        yield _operation("check-missed", "", f"A check was due at {moment(min(due))} and ran {late} late.", min(due))


def _undelivered(ledger: Ledger, now_ns: int) -> Iterator[Signal]:
    refused = ledger.refused_since(now_ns - 24 * 3600 * SECOND_NS)
    for row in ledger.sinks():
        if row.failing_since_ns is not None and now_ns - row.failing_since_ns >= FAILING_NS:
            since = moment(row.failing_since_ns)
            yield _operation("delivery-failing", row.sink, f"Nothing reached {row.sink} since {since}.")
        elif count := refused.get(row.sink, 0):
            yield _operation("delivery-failing", row.sink, f"{row.sink} refused {count:,} messages within a day.")


def _unheard(config: Config, ledger: Ledger, now_ns: int) -> Iterator[Signal]:
    """Targets of the heartbeat that it does not reach. Whoever expects it may be alarmed by that, or not exist."""
    known = ledger.heartbeats()
    for target in config.heartbeat.targets if config.heartbeat is not None else ():
        row = known.get(target)
        if row is None or row.failing_since_ns is None or now_ns - row.failing_since_ns < FAILING_NS:
            continue
        where = "its file" if target == BEAT_FILE else target
        said = f"No heartbeat reached {where} since {moment(row.failing_since_ns)}."
        yield _operation("heartbeat-failing", target, said)


def _silent(config: Config, now_ns: int, newest_ns: int | None) -> Iterator[Signal]:
    if config.silent_after_ns is not None and newest_ns and now_ns - newest_ns > config.silent_after_ns:
        yield _operation("store-silent", "", f"The newest event is of {moment(newest_ns)}.")


def _ending(acceptance: Acceptance, now_ns: int) -> Iterator[Signal]:
    """A warning before the end of an acceptance; and its end, as long as it stands in the configuration."""
    end, who = moment(acceptance.until_ns), f"{acceptance.id}, accepted by {acceptance.accepted_by}"
    if now_ns >= acceptance.until_ns:
        yield _operation("acceptance-expired", acceptance.id, f"The risk acceptance {who}, ended at {end}.")
    elif now_ns >= acceptance.until_ns - acceptance.warn_ns:
        yield _operation("acceptance-expiring", acceptance.id, f"The risk acceptance {who}, ends at {end}.")
