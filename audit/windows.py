"""Times that a person gives as the ends of a window."""

from __future__ import annotations

from datetime import UTC, datetime

from kvwitness.audit.errors import KvwitnessError


def as_utc(option: str, text: str | None) -> str | None:
    """A time as the store has it, in UTC without a zone; one that names no zone is taken for UTC already.

    Raises KvwitnessError, which names the option, for a text that is no time.
    """
    if text is None:
        return None
    try:
        told = datetime.fromisoformat(text.strip())
    except ValueError:
        raise KvwitnessError(
            f"--{option} {text!r} is no time.", "Write it as 2026-08-27 or 2026-08-27T12:00:00Z."
        ) from None
    return str(told.astimezone(UTC).replace(tzinfo=None) if told.tzinfo is not None else told)
