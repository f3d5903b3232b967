"""How often: every so long, or by a cron expression in a time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.errors import KvwitnessError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(?:\d+[smhdw])+")
_PART = re.compile(r"(\d+)([smhdw])")


def duration_ns(text: str) -> int:
    """`90s`, `15m`, `1h30m`, `2d`, `1w` in nanoseconds; raises ValueError for anything else."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration")
    return sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(text)) * SECOND_NS


def in_words(nanoseconds: int) -> str:
    """A duration in the form that `duration_ns` reads, in the largest units that hold it exactly."""
    rest, told = max(0, nanoseconds) // SECOND_NS, ""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _UNITS[unit])
        told += f"{count}{unit}" if count else ""
    return told or "0s"


@dataclass(frozen=True)
class Every:
    """Every so long after the last time."""

    period_ns: int

    def due(self, last_ns: int | None, now_ns: int) -> bool:
        """Whether it is time, when the last time was at `last_ns` (None: never; ahead of now: by a clock that was wrong
        then or is now)."""
        return last_ns is None or not last_ns <= now_ns < last_ns + self.period_ns

    def next_after(self, last_ns: int) -> int:
        """When it is time again."""
        return last_ns + self.period_ns

    def __str__(self) -> str:
        return f"every {in_words(self.period_ns)}"


@dataclass(frozen=True)
class Cron:
    """At the times of a cron expression; times that passed unused count as one."""

    expression: str
    zone: str = "UTC"

    def due(self, last_ns: int | None, now_ns: int) -> bool:
        """Whether a time of the expression lies after `last_ns` and not after now (None: never ran; ahead of now: by a
        clock that was wrong then or is now)."""
        return last_ns is None or last_ns > now_ns or self.next_after(last_ns) <= now_ns

    def next_after(self, last_ns: int) -> int:
        """The first time of the expression after `last_ns`."""
        start = datetime.fromtimestamp(last_ns / SECOND_NS, ZoneInfo(self.zone))
        following: datetime = _croniter()(self.expression, start).get_next(datetime)
        return int(following.timestamp()) * SECOND_NS

    def __str__(self) -> str:
        return f"cron {self.expression} ({self.zone})"


Cadence = Every | Cron


def cron(expression: str, zone: str) -> Cron:
    """A cron expression of five fields; raises ValueError when it is none."""
    if len(expression.split()) != 5 or not _croniter().is_valid(expression):
        raise ValueError(f"{expression!r} is no cron expression of five fields")
    found = Cron(expression, zone)
    try:
        found.next_after(0)
    except ValueError:  # croniter's, who looks fifty years ahead
        raise ValueError(f"{expression!r} is no day of any year") from None
    return found


def _croniter() -> Any:
    try:
        from croniter import croniter
    except ImportError as error:
        raise KvwitnessError(
            "Cron expressions need the package croniter.", "Install kvwitness[alerts], or use `every`."
        ) from error
    return croniter
