"""What the alerts remember, row by row, as `ledger` gives and takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwitness.audit.alerts.model import OPERATION_PREFIX, Notice


@dataclass
class AlertRow:
    """One episode of an alert, as it is kept."""

    alert: str
    episode: int
    labels: Mapping[str, str]
    state: str
    """`firing` or `resolved`."""
    verdict: str
    severity: str
    title: str
    opened_ns: int
    active_ns: int
    """When something about it was new last."""
    ended_ns: int | None = None
    ended_by: str | None = None
    version: int = 0
    said_ns: int | None = None
    said_count: int = 0
    said_severity: str | None = None
    sinks: tuple[str, ...] = ()
    """Those that heard of the episode."""
    notice: str | None = None
    """The last message, as JSON."""
    silenced: bool = False


@dataclass(frozen=True)
class Member:
    """A signal that belongs to an alert."""

    signal: str
    alert: str
    episode: int
    base: str
    """Labels before a storm put it elsewhere."""
    rules: tuple[str, ...]
    mark: str
    """What it said when it was last looked at; another text means news."""
    severity: str
    lasting: bool

    @property
    def about_incident(self) -> bool:
        """Whether it is an incident; others are about kvwitness itself."""
        return not self.signal.startswith(OPERATION_PREFIX)


@dataclass(frozen=True)
class Queued:
    """A message that waits."""

    id: int
    key: str
    sink: str
    notice: Notice
    attempts: int


@dataclass(frozen=True)
class SinkRow:
    """How delivery to a sink goes."""

    sink: str
    failures: int = 0
    """In a row."""
    failing_since_ns: int | None = None
    retry_ns: int = 0
    ok_ns: int | None = None
    error: str | None = None
    reminded_ns: int | None = None


@dataclass(frozen=True)
class HeartbeatRow:
    """How a sign of life arrives at one of its targets."""

    target: str
    """Name of a sink, or `file`."""
    ok_ns: int | None = None
    """When one arrived last."""
    failures: int = 0
    """In a row."""
    failing_since_ns: int | None = None
    error: str | None = None
