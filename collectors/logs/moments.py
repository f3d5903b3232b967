"""Times as logs write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

_UNITS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000))
"""A number at or above this is nanoseconds, microseconds, milliseconds; below all, seconds; until the year 5138."""
_NGINX = re.compile(r"\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4}")
_NUMBER = re.compile(r"\d{9,20}(\.\d+)?")


@dataclass(frozen=True)
class Moment:
    """A time in ns since the epoch."""

    ns: int
    zone_assumed: bool = False
    """It was written without a zone and is taken for UTC."""


def moment(value: Any) -> Moment | None:
    """The time that a value states; None where it states none."""
    if isinstance(value, datetime):
        return _of(value)
    if isinstance(value, date):
        return _of(datetime(value.year, value.month, value.day))
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _number(value)
    if not isinstance(value, str):
        return None
    text = value.strip().strip("[]")
    if _NUMBER.fullmatch(text):
        return _number(float(text) if "." in text else int(text))
    try:
        if _NGINX.fullmatch(text):
            return _of(datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z"))
        return _of(datetime.fromisoformat(text.replace(",", ".").replace("UTC", "Z").replace(" Z", "Z")))
    except ValueError:
        return None


def _number(value: float) -> Moment | None:
    if not 1e8 <= value < 9e18:
        return None
    for least, factor in _UNITS:
        if value >= least:
            return Moment(int(value) * factor)
    return Moment(round(value * 1e6) * 1_000)


def _of(value: datetime) -> Moment:
    assumed = value.tzinfo is None
    aware = value.replace(tzinfo=UTC) if assumed else value
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return Moment(((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000, assumed)
