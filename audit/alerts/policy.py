"""What a signal is worth, who hears of an alert, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.config import Acceptance, Config, QuietHours, Silence
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.model import OPERATION, SEVERITIES, Signal, rank
from kvwitness.audit.alerts.operations import OPERATIONS
from kvwitness.audit.rules import RULES


@dataclass(frozen=True)
class Weighed:
    """A signal with what it is worth."""

    signal: Signal
    severity: str
    accepted: Acceptance | None


def weigh(signal: Signal, config: Config, now_ns: int) -> Weighed | None:
    """The severity of a signal, and the acceptance that covers it; None where it raises no alert.

    The severity is that of its most urgent rule, at least the floor of its verdict, and that of the acceptance where
    one covers it. Findings of verdict `unproven` about requests raise alerts only where configuration names that
    verdict: what a request lacks is said once, by the finding about its source.
    """
    rules = [rule for rule in signal.rules if config.rule(rule).enabled]
    about_source = signal.verdict == "unproven" and signal.request is None
    if not rules or not (signal.verdict in config.verdicts or about_source or signal.verdict == OPERATION):
        return None
    severity = max((_of_rule(rule, config) for rule in rules), key=rank)
    floor = config.floors.get(signal.verdict, SEVERITIES[0])
    severity = max(severity, floor, key=rank)
    for acceptance in config.acceptances:
        if now_ns < acceptance.until_ns and _fits(acceptance.match, signal, severity):
            return Weighed(signal, acceptance.severity, acceptance)
    return Weighed(signal, severity, None)


def _of_rule(rule: str, config: Config) -> str:
    configured = config.rule(rule).severity
    if configured is not None:
        return configured
    return OPERATIONS[rule].severity if rule in OPERATIONS else RULES[rule].severity if rule in RULES else "medium"


def _fits(match: Matcher, signal: Signal, severity: str) -> bool:
    return match.fits(
        verdict=signal.verdict,
        rules=signal.rules,
        engines=[signal.engine] if signal.engine else [],
        tenants=signal.tenants,
        incidents=[signal.id],
        severity=severity,
    )


def any_fits(match: Matcher, members: Iterable[Weighed], severity: str) -> bool:
    """Whether a matcher means an alert with these members: one of them has to fit, at the severity of the alert."""
    return any(_fits(match, one.signal, severity) for one in members)


def all_silenced(members: Sequence[Weighed], silences: Sequence[Silence], severity: str, now_ns: int) -> bool:
    """Whether every member is covered by some silence that is in force."""
    current = [s for s in silences if s.from_ns <= now_ns < s.until_ns]
    return bool(members) and all(any(_fits(s.match, one.signal, severity) for s in current) for one in members)


def sinks_for(config: Config, members: Sequence[Weighed], severity: str) -> tuple[str, ...]:
    """The sinks that hear of an alert, in the order of the routes, each once."""
    heard: dict[str, None] = {}
    for route in config.routes:
        if route.match.empty or any_fits(route.match, members, severity):
            heard |= dict.fromkeys(route.sinks)
            if not route.goes_on:
                break
    return tuple(heard)


def not_before(config: Config, severity: str, now_ns: int) -> int:
    """When a message of this severity may go: now, or at the end of the quiet hours that it falls into."""
    ends = [end for hours in config.quiet if (end := _quiet_until(hours, severity, now_ns))]
    return max(ends, default=now_ns)


def _quiet_until(hours: QuietHours, severity: str, now_ns: int) -> int | None:
    if rank(severity) >= rank(hours.urgent):
        return None
    zone = ZoneInfo(hours.zone)
    now = datetime.fromtimestamp(now_ns / SECOND_NS, zone)
    for day in (now.date() - timedelta(days=1), now.date()):
        if day.weekday() not in hours.days:
            continue
        midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
        start = midnight + timedelta(minutes=hours.start)
        end = midnight + timedelta(days=int(hours.end < hours.start), minutes=hours.end)
        if start <= now < end:
            return int(end.timestamp()) * SECOND_NS
    return None
