"""Prometheus Alertmanager, API v2. It forgets an alert that is not sent again, so it is reminded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from kvwitness.audit.alerts.model import RESOLVED, TEST, Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._http import Poster
from kvwitness.audit.alerts.sinks._wording import iso
from kvwitness.audit.alerts.sinks.model import SinkKind
from kvwitness.audit.wording import listing

_PATH = "/api/v2/alerts"
_TEST_NS = 300 * 1_000_000_000


class Alertmanager:
    """One Alertmanager. Labels name an alert for as long as it is active; what changes stands in annotations."""

    def __init__(self, poster: Poster, hold_ns: int, labels: dict[str, str]) -> None:
        self._poster, self._hold_ns, self._labels = poster, hold_ns, labels

    def deliver(self, notice: Notice) -> None:
        """Fire, update or resolve. A severity that rose is another alert over there: the old one ends."""
        alerts = [self._alert(notice, notice.severity, self._end(notice))]
        if notice.previous_severity is not None:
            alerts.append(self._alert(notice, notice.previous_severity, notice.said_ns))
        self._poster.post(orjson.dumps(alerts), path=_PATH)

    def remind(self, firing: Sequence[Notice], now_ns: int) -> None:
        """Send what is active once more."""
        alerts = [self._alert(notice, notice.severity, now_ns + self._hold_ns) for notice in firing]
        self._poster.post(orjson.dumps(alerts), path=_PATH)

    def beat(self, now_ns: int, every_ns: int) -> None:
        """An alert that is always active, and ends by itself when it is not sent any more."""
        labels = {**self._labels, "alertname": "KvwitnessAlive", "severity": "info"}
        alert = {"labels": labels, "startsAt": iso(now_ns), "endsAt": iso(now_ns + 3 * every_ns)}
        self._poster.post(orjson.dumps([alert]), path=_PATH)

    def _end(self, notice: Notice) -> int:
        if notice.status == RESOLVED and notice.ended_ns is not None:
            return notice.ended_ns
        return notice.said_ns + (_TEST_NS if notice.status == TEST else self._hold_ns)

    def _alert(self, notice: Notice, severity: str, end_ns: int) -> dict[str, Any]:
        own = {f"kvwitness_{name}": value for name, value in notice.labels.items()}
        annotations = {
            "summary": notice.title,
            "description": notice.summary,
            "runbook_url": notice.runbook,
            "incidents": str(notice.incidents),
            "key": notice.key,
        }
        if notice.acknowledged:
            annotations["acknowledged"] = f"{notice.acknowledged} by {listing(notice.acknowledged_by)}"
        if notice.assigned_to:
            annotations["assigned_to"] = listing(notice.assigned_to)
        return {
            "labels": {
                **self._labels,
                **own,
                "alertname": f"Kvwitness{notice.verdict.capitalize()}",
                "alert": notice.alert,
                "severity": severity,
            },
            "annotations": annotations,
            "startsAt": iso(notice.opened_ns),
            "endsAt": iso(max(end_ns, notice.opened_ns + 1_000_000)),
            **({"generatorURL": notice.link} if notice.link else {}),
        }


def make(section: Section) -> Alertmanager:
    """Keys: `url` (without /api), `hold` (how long an alert stays active over there when kvwitness falls silent),
    `labels` (added to all), `headers`, `ca_file`."""
    labels = section.section("labels")
    return Alertmanager(
        Poster.of(section), section.duration("hold", "24h"), {name: labels.text(name) for name in labels.names()}
    )


SINK = SinkKind("alertmanager", "Prometheus Alertmanager, API v2", make)
