"""Quoting for the SQL that the store writes."""

from __future__ import annotations

from collections.abc import Iterable


def text(value: str) -> str:
    """A string as a SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """A string as a SQL identifier."""
    return '"' + value.replace('"', '""') + '"'


def texts(values: Iterable[str]) -> str:
    """Strings as a comma-separated list of SQL literals."""
    return ", ".join(text(v) for v in values)
