"""What a signal's messages are turned into: events to keep, and an account of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvwitness.collectors.otlp.senders import ANYONE, Sender

Event = tuple[str, int, dict[str, Any]]
"""Kind, time in ns, the other fields."""


@dataclass(frozen=True)
class Origin:
    """Who sent an export request, and with which headers (names in lower case)."""

    sender: Sender = ANYONE
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """The events of one span or log record; they are kept all or none."""

    identity: bytes
    """Equal where a record is sent again."""
    events: tuple[Event, ...]
    vouched: tuple[Mapping[str, Any], ...] = ()
    """For each event, fields beside the vocabulary that cannot be content (see `RowBuilder.add_parsed`)."""


@dataclass
class Account:
    """What became of the records of one export request, or of all."""

    accepted: int = 0
    """Kept."""
    doubled: int = 0
    """Had come before."""
    ignored: int = 0
    """Say nothing about requests, engines or pages."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason -> how many were refused."""
    content: Counter[str] = field(default_factory=Counter)
    """Name -> values of prompts, outputs and the like that were dropped."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """What is meant -> values of a type that cannot mean it; the rest of their record is kept."""

    def reasons(self) -> str:
        """Why records were refused, for their sender; empty where none was."""
        return "; ".join(f"{count}: {reason}" for reason, count in self.rejected.most_common(10))
