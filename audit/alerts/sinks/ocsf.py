"""OCSF Detection Finding (class 2004), as JSON to an address or into a file, for security data lakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from kvwitness import __version__
from kvwitness.audit.alerts.model import RESOLVED, UPDATED, Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._http import Poster
from kvwitness.audit.alerts.sinks._lines import append
from kvwitness.audit.alerts.sinks.model import SinkKind
from kvwitness.audit.rules import RULES

VERSION = "1.5.0"
"""Of the schema."""
_CLASS, _CATEGORY = 2004, 2
_SEVERITY = {"info": 1, "low": 2, "medium": 3, "high": 4, "critical": 5}
_NAMES = {1: "Informational", 2: "Low", 3: "Medium", 4: "High", 5: "Critical"}


def finding(notice: Notice) -> dict[str, Any]:
    """One notice as a Detection Finding: created, updated or closed."""
    activity, name = {UPDATED: (2, "Update"), RESOLVED: (3, "Close")}.get(notice.status, (1, "Create"))
    status, status_name = (2, "In Progress") if notice.taken_up else (1, "New")
    if notice.status == RESOLVED:
        status, status_name = 4, "Resolved"
    severity = _SEVERITY[notice.severity]
    attacks = sorted({a for rule in notice.rules if rule in RULES for a in RULES[rule].atlas})
    return {
        "activity_id": activity,
        "activity_name": name,
        "category_uid": _CATEGORY,
        "category_name": "Findings",
        "class_uid": _CLASS,
        "class_name": "Detection Finding",
        "type_uid": _CLASS * 100 + activity,
        "type_name": f"Detection Finding: {name}",
        "time": notice.said_ns // 1_000_000,
        "start_time": (notice.first_ns or notice.opened_ns) // 1_000_000,
        "end_time": (notice.last_ns or notice.said_ns) // 1_000_000,
        "count": notice.incidents,
        "message": notice.summary,
        "severity_id": severity,
        "severity": _NAMES[severity],
        "status_id": status,
        "status": status_name,
        "is_alert": True,
        "metadata": {
            "version": VERSION,
            "uid": notice.key,
            "correlation_uid": f"{notice.alert}/{notice.episode}",
            "product": {"name": "kvwitness", "vendor_name": "kvwitness", "version": __version__},
        },
        "finding_info": {
            "uid": f"{notice.alert}/{notice.episode}",
            "title": notice.title,
            "desc": notice.summary,
            "created_time": notice.opened_ns // 1_000_000,
            "modified_time": notice.said_ns // 1_000_000,
            "types": list(notice.rules),
            **({"src_url": notice.link} if notice.link else {}),
        },
        "remediation": {"desc": f"See {notice.runbook}", "references": [notice.runbook]},
        "unmapped": {
            "verdict": notice.verdict,
            "labels": dict(notice.labels),
            "incidents": list(notice.sample),
            "tenants": notice.tenants,
            "atlas": attacks,
            "acknowledged_by": list(notice.acknowledged_by),
            "assigned_to": list(notice.assigned_to),
            "repeated": notice.repeated,
        },
    }


class OcsfHttp:
    """Posts each finding to one address."""

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    def deliver(self, notice: Notice) -> None:
        """Post one finding."""
        self._poster.post(orjson.dumps(finding(notice)), headers={"Idempotency-Key": notice.key})


class OcsfFile:
    """Appends each finding to a file of JSON Lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def deliver(self, notice: Notice) -> None:
        """Append one line."""
        append(self._path, orjson.dumps(finding(notice)))


def make(section: Section) -> OcsfHttp | OcsfFile:
    """Keys: `url` (with `headers`, `ca_file`) or `path`."""
    if "path" in section:
        return OcsfFile(section.path("path"))
    return OcsfHttp(Poster.of(section))


SINK = SinkKind("ocsf", "OCSF Detection Finding, to an address or a file", make)
