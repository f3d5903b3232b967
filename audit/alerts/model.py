"""What an alert is made of: the signals that came in, and the notice that goes out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SEVERITIES = ("info", "low", "medium", "high", "critical")
"""How urgent, the least first."""

OPERATION = "operation"
"""In place of a verdict: something about kvwitness itself, such as a check that did not run."""

OPERATION_PREFIX = "op-"
"""Of the ids of such signals; other ids are those of incidents."""

UNKNOWN = "unknown"
"""Label of what is not on record."""

FIRING, UPDATED, RESOLVED, TEST = "firing", "updated", "resolved", "test"


def rank(severity: str) -> int:
    """Larger is more urgent."""
    return SEVERITIES.index(severity)


@dataclass(frozen=True)
class Signal:
    """One thing that was found: an incident of the newest audit, or something about kvwitness itself."""

    id: str
    """Incident id, or `op-` and a name."""
    verdict: str
    rules: tuple[str, ...]
    """The rule that carries the verdict first."""
    request: str | None = None
    tenant: str | None = None
    """Whom it befell."""
    tenants: frozenset[str] = frozenset()
    """All tenants on both sides."""
    engine: str | None = None
    first_ns: int = 0
    last_ns: int = 0
    findings: int = 1
    lasting: bool = False
    """Holds as long as it is found, and is over when it is not; others are events, over after a time of calm."""
    said: str = ""
    """One sentence of facts, for what no incident page explains."""
    standing: str = "open"
    """What people did with the incident: one of `kvwitness.audit.overall.standing.STANDINGS`."""
    standing_by: str | None = None
    """Who did that."""
    assignee: str | None = None
    """To whom the incident is assigned."""

    @property
    def rule(self) -> str:
        """The rule that carries the verdict."""
        return self.rules[0]


@dataclass(frozen=True)
class Notice:
    """One message about one alert: ids, counts and links, never content."""

    key: str
    """The idempotency key: the same message never has another, another message never has the same."""
    alert: str
    episode: int
    version: int
    """Counts the messages of an episode."""
    status: str
    """`firing`, `updated`, `resolved` or `test`."""
    severity: str
    previous_severity: str | None
    """Of the message before, where it differs."""
    verdict: str
    labels: Mapping[str, str]
    """What the alert is about; the same in all of its messages."""
    title: str
    summary: str
    incidents: int
    """How many belong to it."""
    new_incidents: int
    """How many of them the message before did not count."""
    findings: int
    tenants: int
    """How many tenants stand on either side."""
    rules: tuple[str, ...]
    sample: tuple[str, ...]
    """Ids of some of the incidents, the newest first."""
    first_ns: int
    """Earliest of what was found, by reference time; 0 where nothing is dated."""
    last_ns: int
    opened_ns: int
    said_ns: int
    """When this message was decided on."""
    ended_ns: int | None
    runbook: str
    link: str | None
    accepted: str | None = None
    """Id of the risk acceptance that covers it."""
    tenant_names: tuple[str, ...] = ()
    """Only where configuration asks for names."""
    acknowledged: int = 0
    """How many of the incidents somebody has acknowledged."""
    acknowledged_by: tuple[str, ...] = ()
    assigned_to: tuple[str, ...] = ()
    repeated: bool = field(default=False, compare=False)
    """An earlier attempt may have arrived: whoever does not know the key may have it twice."""

    @property
    def taken_up(self) -> bool:
        """Whether somebody has acknowledged all of its incidents."""
        return self.acknowledged >= self.incidents > 0

    def to_json(self) -> str:
        """For the queue on disk."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Notice:
        """The notice that `to_json` wrote."""
        raw: dict[str, Any] = json.loads(text)
        for name in ("rules", "sample", "tenant_names", "acknowledged_by", "assigned_to"):
            raw[name] = tuple(raw.get(name, ()))  # messages of an older version lack some
        return cls(**raw)


def alert_id(labels: Mapping[str, str]) -> str:
    """A short id that depends on the labels alone."""
    text = json.dumps(labels, sort_keys=True)
    return "al-" + hashlib.sha256(text.encode()).hexdigest()[:12]
