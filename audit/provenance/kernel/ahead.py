"""Pages are visited in no order, so the processor is told in time which of them come next.

A page that is not in its cache costs ten times what the replay does with it.
"""

from __future__ import annotations

from typing import Any

AHEAD = 48
"""So many pages before a page is looked at, its records begin to come out of memory."""

EVENTS_AHEAD = 8
"""And so many events before an event, that of its first page: most events of a decode have one page."""


def soon(record: Any) -> None:
    """Compiled, a hint that the record will be written soon; interpreted, nothing."""
