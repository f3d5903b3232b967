"""A notice in words and as plain data, as several sinks tell it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.model import RESOLVED, TEST, Notice
from kvwitness.audit.wording import listing, several

_MARKS = {"firing": "FIRING", "updated": "UPDATE", RESOLVED: "RESOLVED", TEST: "TEST"}


def iso(moment_ns: int) -> str:
    """A time as RFC 3339 in UTC, with milliseconds."""
    told = datetime.fromtimestamp(moment_ns // SECOND_NS, UTC)
    return f"{told:%Y-%m-%dT%H:%M:%S}.{moment_ns % SECOND_NS // 1_000_000:03d}Z"


def headline(notice: Notice) -> str:
    """One line."""
    again = " (may be a repetition)" if notice.repeated else ""
    return f"[{_MARKS[notice.status]}] {notice.severity}: {notice.title}{again}"


def lines(notice: Notice) -> list[str]:
    """What a person should know, line by line."""
    told = [notice.summary]
    if notice.first_ns:
        told.append(f"Recorded from {iso(notice.first_ns)} to {iso(notice.last_ns)}.")
    if notice.sample:
        more = f", and {notice.incidents - len(notice.sample):,} more" if notice.incidents > len(notice.sample) else ""
        told.append(f"Incidents: {', '.join(notice.sample)}{more}.")
    if notice.tenant_names:
        told.append(f"Tenants: {', '.join(notice.tenant_names)}.")
    if notice.acknowledged:
        of = "" if notice.taken_up else f", {notice.acknowledged:,} of {several(notice.incidents, 'incident')}"
        told.append(f"Acknowledged by {listing(notice.acknowledged_by)}{of}.")
    if notice.assigned_to:
        told.append(f"Assigned to {listing(notice.assigned_to)}.")
    if notice.accepted:
        told.append(f"Covered by risk acceptance {notice.accepted}.")
    told.append(f"What to do: {notice.runbook}")
    if notice.link:
        told.append(f"Look at it: {notice.link}")
    told.append(f"Alert {notice.alert}, episode {notice.episode}, message {notice.version}.")
    return told


def document(notice: Notice) -> dict[str, Any]:
    """A notice as JSON, for machines; the form `kvwitness.alert/1`."""
    return {
        "schema": "kvwitness.alert/1",
        "key": notice.key,
        "alert": notice.alert,
        "episode": notice.episode,
        "version": notice.version,
        "status": notice.status,
        "severity": notice.severity,
        "verdict": notice.verdict,
        "title": notice.title,
        "summary": notice.summary,
        "labels": dict(notice.labels),
        "counts": {
            "incidents": notice.incidents,
            "new_incidents": notice.new_incidents,
            "findings": notice.findings,
            "tenants": notice.tenants,
        },
        "rules": list(notice.rules),
        "incidents": list(notice.sample),
        "tenants": list(notice.tenant_names),
        "recorded_from": iso(notice.first_ns) if notice.first_ns else None,
        "recorded_to": iso(notice.last_ns) if notice.last_ns else None,
        "opened_at": iso(notice.opened_ns),
        "said_at": iso(notice.said_ns),
        "ended_at": iso(notice.ended_ns) if notice.ended_ns else None,
        "accepted": notice.accepted,
        "acknowledged": {"incidents": notice.acknowledged, "by": list(notice.acknowledged_by)},
        "assigned_to": list(notice.assigned_to),
        "runbook": notice.runbook,
        "link": notice.link,
        "repeated": notice.repeated,
    }
