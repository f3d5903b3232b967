"""OpenTelemetry log records, over OTLP/HTTP as JSON."""

from __future__ import annotations

from typing import Any

import orjson

from kvwitness import __version__
from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._http import Poster
from kvwitness.audit.alerts.sinks._wording import headline
from kvwitness.audit.alerts.sinks.model import Refused, SinkKind

_SEVERITY = {
    "critical": (21, "FATAL"),
    "high": (17, "ERROR"),
    "medium": (13, "WARN"),
    "low": (10, "INFO2"),
    "info": (9, "INFO"),
}


def _value(value: object) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}


def _attributes(facts: dict[str, object]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in facts.items() if value is not None]


def record(notice: Notice) -> dict[str, Any]:
    """An ExportLogsServiceRequest with one record."""
    number, text = _SEVERITY[notice.severity]
    facts: dict[str, object] = {
        "kvwitness.alert.key": notice.key,
        "kvwitness.alert.id": notice.alert,
        "kvwitness.alert.episode": notice.episode,
        "kvwitness.alert.status": notice.status,
        "kvwitness.alert.verdict": notice.verdict,
        "kvwitness.alert.summary": notice.summary,
        "kvwitness.alert.incidents": notice.incidents,
        "kvwitness.alert.tenants": notice.tenants,
        "kvwitness.alert.rules": notice.rules,
        "kvwitness.alert.sample": notice.sample,
        "kvwitness.alert.runbook": notice.runbook,
        "kvwitness.alert.link": notice.link,
        "kvwitness.alert.accepted": notice.accepted,
        "kvwitness.alert.acknowledged": notice.acknowledged,
        "kvwitness.alert.acknowledged_by": notice.acknowledged_by,
        "kvwitness.alert.assigned_to": notice.assigned_to,
        "kvwitness.alert.repeated": notice.repeated,
    }
    one = {
        "timeUnixNano": str(notice.said_ns),
        "observedTimeUnixNano": str(notice.said_ns),
        "severityNumber": number,
        "severityText": text,
        "eventName": "kvwitness.alert",
        "body": {"stringValue": headline(notice)},
        "attributes": _attributes(facts),
    }
    scope = {"name": "kvwitness.audit.alerts", "version": __version__}
    resource = {"attributes": _attributes({"service.name": "kvwitness", "service.version": __version__})}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": [one]}]}]}


class OtlpLogs:
    """One receiver of logs."""

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    def deliver(self, notice: Notice) -> None:
        """Export one record; a receiver that says that it left it out has refused it."""
        answer = self._poster.post(orjson.dumps(record(notice)))
        try:
            partial = (orjson.loads(answer) if answer else {}).get("partialSuccess") or {}
        except (orjson.JSONDecodeError, AttributeError):
            return
        if int(partial.get("rejectedLogRecords", 0) or 0):
            raise Refused(f"the record was left out: {partial.get('errorMessage', 'no reason given')}"[:500])


def make(section: Section) -> OtlpLogs:
    """Keys: `url` (with its path, mostly /v1/logs), `headers`, `ca_file`."""
    return OtlpLogs(Poster.of(section))


SINK = SinkKind("otlp", "OpenTelemetry log records over OTLP/HTTP", make)
