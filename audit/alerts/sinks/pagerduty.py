"""PagerDuty, Events API v2."""

from __future__ import annotations

import orjson

from kvwitness.audit.alerts.model import RESOLVED, UPDATED, Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._http import Poster
from kvwitness.audit.alerts.sinks._wording import document, headline, iso
from kvwitness.audit.alerts.sinks.model import SinkKind

_URL = "https://events.pagerduty.com/v2/enqueue"
_SEVERITY = {"critical": "critical", "high": "error", "medium": "warning", "low": "warning", "info": "info"}
_LONGEST = 1024


class PagerDuty:
    """One service, by its routing key. The episode of an alert is the key by which events find each other."""

    def __init__(self, poster: Poster, routing_key: str) -> None:
        self._poster, self._routing_key = poster, routing_key

    def deliver(self, notice: Notice) -> None:
        """Trigger (again: update), acknowledge when somebody has acknowledged all of its incidents, or resolve."""
        action = {RESOLVED: "resolve", UPDATED: "acknowledge" if notice.taken_up else "trigger"}
        event = {
            "routing_key": self._routing_key,
            "event_action": action.get(notice.status, "trigger"),
            "dedup_key": f"{notice.alert}/{notice.episode}",
            "payload": {
                "summary": headline(notice)[:_LONGEST],
                "source": notice.labels.get("engine", "kvwitness"),
                "severity": _SEVERITY[notice.severity],
                "timestamp": iso(notice.said_ns),
                "component": notice.labels.get("engine", "kvwitness"),
                "group": notice.verdict,
                "class": notice.rules[0] if notice.rules else notice.verdict,
                "custom_details": document(notice),
            },
            "links": [
                {"href": notice.runbook, "text": "What to do"},
                *([{"href": notice.link, "text": "Look at it"}] if notice.link else []),
            ],
            "client": "kvwitness",
        }
        self._poster.post(orjson.dumps(event))


def make(section: Section) -> PagerDuty:
    """Keys: `routing_key`, `url` (default: PagerDuty's), `headers`, `ca_file`."""
    return PagerDuty(Poster.of(section, default=_URL), section.secret("routing_key"))


SINK = SinkKind("pagerduty", "PagerDuty, Events API v2", make)
