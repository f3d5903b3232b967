"""One step of the alerts' memory: from what was found now, to what is remembered and has to be said.

Runs inside one transaction of the ledger. The same signals at the same time change nothing a second time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from kvwitness.audit.alerts import grouping, policy
from kvwitness.audit.alerts.cadence import in_words
from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.config import Config, Silence
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Conditions
from kvwitness.audit.alerts.model import (
    FIRING,
    OPERATION,
    RESOLVED,
    UNKNOWN,
    UPDATED,
    Notice,
    Signal,
    alert_id,
    rank,
)
from kvwitness.audit.alerts.operations import OPERATIONS
from kvwitness.audit.alerts.policy import Weighed
from kvwitness.audit.alerts.rows import AlertRow, Member
from kvwitness.audit.overall.standing import ACKNOWLEDGED, CLOSED
from kvwitness.audit.wording import listing, several

BY_CLOSING = "closed"
"""In `ended_by`: somebody closed all of its incidents."""
_CALM_NS = 900 * SECOND_NS
_MOST_DOUBLINGS = 4
_SAMPLE = 10
_NAMES = 50


@dataclass
class Outcome:
    """What one step did."""

    opened: int = 0
    updated: int = 0
    resolved: int = 0
    unrouted: int = 0
    """Messages that no route took."""


def step(ledger: Ledger, config: Config, signals: Sequence[Signal], due: Iterable[str], now_ns: int) -> Outcome:
    """Take in all signals of the rules that are due. What other rules said before stays as it is.

    An incident that somebody closed is no signal, whether or not its rules are due; an alert of which all incidents
    were closed is over at once.
    """
    closed = {signal.id: signal for signal in signals if signal.standing == CLOSED}
    signals = [signal for signal in signals if signal.id not in closed]
    considered = {*due, *OPERATIONS}
    weighed = {
        one.signal.id: one
        for signal in signals
        if considered.intersection(signal.rules) and (one := policy.weigh(signal, config, now_ns)) is not None
    }
    everything = {s.id: one for s in signals if (one := policy.weigh(s, config, now_ns)) is not None}
    fresh = _placed(ledger, config, weighed)
    emptied = _closed(ledger, closed)
    touched = _gone(ledger, everything, considered) | {*emptied} | {member.alert for member in fresh.values()}
    for ident in fresh:
        ledger.drop_member(ident)  # lest the alert that it leaves counts it once more
    by_alert: dict[str, list[Member]] = {}
    for member in fresh.values():
        by_alert.setdefault(member.alert, []).append(member)
    silences = [*config.silences, *_commanded(ledger)]
    outcome = Outcome()
    for alert in sorted(touched | {row.alert for row in ledger.firing()}):
        turn = _Turn(ledger, config, everything, silences, now_ns, outcome, emptied.get(alert, ()))
        turn.take(alert, by_alert.get(alert, []))
    return outcome


def resolve_by_hand(ledger: Ledger, config: Config, alert: str, who: str, now_ns: int) -> bool:
    """End an alert because somebody says so; it opens again with the next news. False when it does not fire."""
    row = ledger.newest(alert)
    if row is None or row.state != FIRING:
        return False
    _Turn(ledger, config, {}, [], now_ns, Outcome()).resolve(row, who)
    return True


def _commanded(ledger: Ledger) -> list[Silence]:
    return [
        Silence(
            id=row["id"],
            match=Conditions({name: tuple(values) for name, values in row["conditions"].items()}).matcher(),
            owner=row["owner"],
            until_ns=row["until_ns"],
            reason=row["reason"],
            from_ns=row["from_ns"],
        )
        for row in ledger.silences()
    ]


def _placed(ledger: Ledger, config: Config, weighed: Mapping[str, Weighed]) -> dict[str, Member]:
    """The members that are new, changed, or belong elsewhere now; with episode 0 until an alert takes them."""
    known = {member.signal: member for member in ledger.members()}
    fresh: dict[str, Member] = {}
    labels: dict[str, grouping.Labels] = {}
    for ident, one in weighed.items():
        signal, own = one.signal, grouping.labels_of(one, config)
        base = alert_id(own)
        before = known.get(ident)
        stays = before is not None and before.base == base
        alert = before.alert if before is not None and stays else base
        labels[base] = own
        mark = json.dumps([signal.verdict, signal.last_ns, signal.findings])
        member = Member(ident, alert, 0, base, signal.rules, mark, one.severity, signal.lasting)
        if before is None or replace(before, episode=0) != member:
            fresh[ident] = member
    new = [labels[m.base] for m in fresh.values() if m.alert == m.base and ledger.newest(m.base) is None]
    storm = grouping.stormed(new, config)
    for ident, member in fresh.items():
        own = labels[member.base]
        if member.base in storm and member.alert == member.base:
            own = dict(storm[member.base])
            fresh[ident] = replace(member, alert=alert_id(own))
        elif member.alert != member.base:
            continue
        ledger.set_fact(f"labels/{fresh[ident].alert}", json.dumps(own, sort_keys=True))
    return fresh


def _gone(ledger: Ledger, everything: Mapping[str, Weighed], considered: set[str]) -> set[str]:
    """Drop members of rules that were looked at and that are no longer found; returns their alerts."""
    alerts = set()
    for member in ledger.members():
        if member.signal not in everything and considered.intersection(member.rules):
            ledger.drop_member(member.signal)
            alerts.add(member.alert)
    return alerts


def _closed(ledger: Ledger, closed: Mapping[str, Signal]) -> dict[str, tuple[str, ...]]:
    """Drop members that somebody closed; returns their alerts, with who did."""
    alerts: dict[str, set[str]] = {}
    for member in ledger.members():
        if member.signal in closed:
            ledger.drop_member(member.signal)
            alerts.setdefault(member.alert, set()).add(closed[member.signal].standing_by or UNKNOWN)
    return {alert: tuple(sorted(who)) for alert, who in alerts.items()}


@dataclass
class _Turn:
    """The turn of one alert."""

    ledger: Ledger
    config: Config
    everything: Mapping[str, Weighed]
    silences: Sequence[Silence]
    now_ns: int
    outcome: Outcome
    closed_by: tuple[str, ...] = ()
    """Who closed incidents of the alert in this step."""

    def take(self, alert: str, fresh: Sequence[Member]) -> None:
        row = self.ledger.newest(alert)
        if row is None or row.state != FIRING:
            if not fresh:
                return
            row = self._opened(alert, row, fresh[0])
        for member in fresh:
            self.ledger.set_member(replace(member, episode=row.episode))
        members = self.ledger.members("alert = ? AND episode = ?", alert, row.episode)
        if fresh:
            row.active_ns = self.now_ns
        if self.closed_by and not members:
            self.resolve(row, BY_CLOSING)
            return
        if self._over(row, members):
            self.resolve(row, "calm" if members else "gone")
            return
        if members:
            row.severity = max([row.severity, *(m.severity for m in members)], key=rank)
        self._tell(row, members)
        self.ledger.keep(row)

    def _opened(self, alert: str, before: AlertRow | None, first: Member) -> AlertRow:
        labels = json.loads(self.ledger.fact(f"labels/{alert}") or "{}")
        self.outcome.opened += 1
        return AlertRow(
            alert=alert,
            episode=before.episode + 1 if before else 1,
            labels=labels,
            state=FIRING,
            verdict=labels["verdict"],
            severity=first.severity,
            title="",
            opened_ns=self.now_ns,
            active_ns=self.now_ns,
        )

    def _over(self, row: AlertRow, members: Sequence[Member]) -> bool:
        """Whether it is calm. An alert that came again and again has to be calm for longer each time."""
        since = self.now_ns - self.config.flap_memory_ns
        again = min(_MOST_DOUBLINGS, self.ledger.episodes_since(row.alert, since) - (row.opened_ns >= since))
        again = max(0, again)
        calm = self.now_ns - row.active_ns
        if not members or any(m.lasting for m in members):
            # Over when it is gone: at once the first time, later only when it stays away.
            return not members and calm >= (_CALM_NS << (again - 1) if again else 0)
        return calm >= self.config.resolve_after_ns << again

    def _tell(self, row: AlertRow, members: Sequence[Member]) -> None:
        weighed = [self.everything[m.signal] for m in members if m.signal in self.everything]
        row.silenced = policy.all_silenced(weighed, self.silences, row.severity, self.now_ns)
        engines = sorted({one.signal.engine for one in weighed if one.signal.engine})
        row.title = grouping.title_of(row.labels, len(members), engines)
        if row.silenced or not weighed:
            return
        if row.said_ns is None:
            self._say(row, members, weighed, FIRING)
            return
        louder = row.said_severity is not None and rank(row.severity) > rank(row.said_severity)
        more = len(members) != row.said_count and self.now_ns - row.said_ns >= self.config.update_every_ns
        if louder or more or self._taken_up(row, weighed):
            self.outcome.updated += 1
            self._say(row, members, weighed, UPDATED)

    def _taken_up(self, row: AlertRow, weighed: Sequence[Weighed]) -> bool:
        """Whether somebody else looks after it than was said: that is told at once."""
        if row.notice is None:
            return False
        told, now = Notice.from_json(row.notice), _handling(weighed)
        before = (told.taken_up, told.acknowledged_by if told.taken_up else (), told.assigned_to)
        all_taken = now.acknowledged >= len(weighed) > 0
        return before != (all_taken, now.acknowledged_by if all_taken else (), now.assigned_to)

    def resolve(self, row: AlertRow, by: str) -> None:
        """End an episode, and say so to all who heard of it."""
        row.state, row.ended_ns, row.ended_by = RESOLVED, self.now_ns, by
        self.outcome.resolved += 1
        if row.said_ns is not None and row.notice is not None:
            last = Notice.from_json(row.notice)
            members = self.ledger.members("alert = ? AND episode = ?", row.alert, row.episode)
            row.version += 1
            notice = replace(
                last,
                key=f"{row.alert}/{row.episode}/{row.version}",
                version=row.version,
                status=RESOLVED,
                severity=row.said_severity or row.severity,
                previous_severity=None,
                summary=_over_in_words(last, by, self.now_ns - row.active_ns, len(members), self.closed_by),
                incidents=max(last.incidents, len(members)),
                new_incidents=max(0, len(members) - row.said_count),
                said_ns=self.now_ns,
                ended_ns=self.now_ns,
            )
            self._enqueue(row, notice, row.sinks)
        self.ledger.keep(row)

    def _say(self, row: AlertRow, members: Sequence[Member], weighed: Sequence[Weighed], status: str) -> None:
        row.version += 1
        notice = self._notice(row, members, weighed, status)
        routed = policy.sinks_for(self.config, weighed, row.severity)
        self.outcome.unrouted += not routed
        self._enqueue(row, notice, tuple(dict.fromkeys([*row.sinks, *routed])))
        row.said_ns, row.said_count, row.said_severity = self.now_ns, len(members), row.severity
        row.notice = notice.to_json()

    def _enqueue(self, row: AlertRow, notice: Notice, sinks: Sequence[str]) -> None:
        when = policy.not_before(self.config, notice.severity, self.now_ns)
        for sink in sinks:
            if sink not in self.config.sinks:
                continue
            # Who hears of it for the first time is not told of an update.
            first = notice.status == UPDATED and sink not in row.sinks
            self.ledger.enqueue(replace(notice, status=FIRING) if first else notice, sink, self.now_ns, when)
        row.sinks = tuple(dict.fromkeys([*row.sinks, *sinks]))

    def _notice(self, row: AlertRow, members: Sequence[Member], weighed: Sequence[Weighed], status: str) -> Notice:
        signals = sorted((one.signal for one in weighed), key=lambda s: (-s.last_ns, s.id))
        rules = tuple(dict.fromkeys(rule for signal in signals for rule in signal.rules))
        tenants = sorted(set().union(*(signal.tenants for signal in signals)))
        dated = [signal.first_ns for signal in signals if signal.first_ns]
        accepted = next((one.accepted for one in weighed if one.accepted), None)
        return Notice(
            key=f"{row.alert}/{row.episode}/{row.version}",
            alert=row.alert,
            episode=row.episode,
            version=row.version,
            status=status,
            severity=row.severity,
            previous_severity=row.said_severity if row.said_severity != row.severity else None,
            verdict=row.verdict,
            labels=row.labels,
            title=row.title,
            summary=_in_words(row, signals, rules, len(members), len(tenants)),
            incidents=len(members),
            new_incidents=max(0, len(members) - row.said_count),
            findings=sum(signal.findings for signal in signals),
            tenants=len(tenants),
            rules=rules,
            sample=tuple(signal.id for signal in signals[:_SAMPLE]),
            first_ns=min(dated, default=0),
            last_ns=max((signal.last_ns for signal in signals), default=0),
            opened_ns=row.opened_ns,
            said_ns=self.now_ns,
            ended_ns=None,
            runbook=self._runbook(rules),
            link=self._link(row),
            accepted=accepted.id if accepted else None,
            tenant_names=tuple(tenants[:_NAMES]) if self.config.name_tenants else (),
            **asdict(_handling(weighed)),
        )

    def _runbook(self, rules: Sequence[str]) -> str:
        rule = rules[0] if rules else ""
        return (self.config.rule(rule).runbook or self.config.runbook).replace("{rule}", rule)

    def _link(self, row: AlertRow) -> str | None:
        if self.config.dashboard is None:
            return None
        page = "health" if row.verdict == OPERATION else f"incidents?verdict={row.verdict}"
        return f"{self.config.dashboard.rstrip('/')}/{page}"


@dataclass(frozen=True)
class _Handling:
    """What people do about an alert; the names are those of `Notice`."""

    acknowledged: int
    acknowledged_by: tuple[str, ...]
    assigned_to: tuple[str, ...]


def _handling(weighed: Sequence[Weighed]) -> _Handling:
    taken = [one.signal for one in weighed if one.signal.standing == ACKNOWLEDGED]
    return _Handling(
        acknowledged=len(taken),
        acknowledged_by=tuple(sorted({s.standing_by for s in taken if s.standing_by})),
        assigned_to=tuple(sorted({one.signal.assignee for one in weighed if one.signal.assignee})),
    )


def _in_words(row: AlertRow, signals: Sequence[Signal], rules: Sequence[str], incidents: int, tenants: int) -> str:
    if row.verdict == OPERATION:
        return " ".join(signal.said for signal in signals)
    new = incidents - row.said_count
    told = [several(incidents, "incident")]
    if row.said_count and new > 0:
        told.append(f"{new:,} of them new")
    if tenants:
        told.append(f"{several(tenants, 'tenant')} concerned")
    return f"{', '.join(told)}. Rules: {', '.join(rules[:6])}{', ...' if len(rules) > 6 else ''}."


def _over_in_words(last: Notice, by: str, calm_ns: int, incidents: int, closed_by: Sequence[str]) -> str:
    total = several(max(last.incidents, incidents), "incident")
    if by == "calm":
        return f"{total}, none new for {in_words(calm_ns)}. That it is calm does not say that the cause is gone."
    if by == BY_CLOSING:
        return (
            f"The last of {total} was closed by {listing(closed_by)}. It opens again when one is reopened or changes."
        )
    if by == "gone":
        return "It is not found any more, or is part of another alert now."
    return f"Ended by {by} with {total} on record."
