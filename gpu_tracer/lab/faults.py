"""The faults that can be switched on. Each happened in an engine, and each is one `if` in the lab."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """One of the faults, or none."""

    NONE = "none"
    PLACEHOLDER = "placeholder"
    DROPPED_PAGES = "dropped-pages"
    DROPPED_LAYER = "dropped-layer"
    LATE_WRITE = "late-write"
    UNSEEN_WRITE = "unseen-write"
    FREE_WHILE_READING = "free-while-reading"
    DOUBLE_ISSUE = "double-issue"
    STALE_REFERENCE = "stale-reference"


class Guard(StrEnum):
    """What the engine does to be on the safe side."""

    NONE = "none"
    SCRUB = "scrub"
    """Pages are overwritten with zeros when they are freed."""
    POISON = "poison"
    """Pages are overwritten with marks when they are freed."""
    REFUSE = "refuse"
    """Freed pages are marked, and a request of which a row still has its mark when it is to be read, gets a 500."""


@dataclass(frozen=True)
class Told:
    """What a fault is."""

    happens: str
    """In one sentence, what the engine does wrong."""
    rules: tuple[str, ...]
    """Rules that must find it; others may as well."""
    request: str = "r-ask"
    """The request whose answer holds the other tenant's secret."""
    also: str | None = None
    """Another request that reads what is not its own, although its answer need not show it."""
    elsewhere: tuple[str, ...] = ()
    """Rules that must find it at that other request."""


TOLD: dict[Fault, Told] = {
    Fault.NONE: Told("nothing is wrong: the over-long prompt is refused", ()),
    Fault.PLACEHOLDER: Told(
        "prefill refuses the over-long prompt, and hands over a placeholder of one token as if it were the prompt",
        ("unwritten-page-read", "uncovered-read", "false-transfer-complete", "over-limit-success", "stale-content"),
        "r-long",
    ),
    Fault.DROPPED_PAGES: Told(
        "the transfer never lands, and is reported page by page as if it had: only the bytes tell",
        ("stale-content",),
    ),
    Fault.DROPPED_LAYER: Told(
        "the transfer loses layer 1, and is reported as if it had not: only the bytes tell",
        ("stale-content",),
    ),
    Fault.LATE_WRITE: Told(
        "a cancelled request's pages are given away while its transfer is in flight; it lands on their next owner",
        ("late-write", "foreign-page-read"),
    ),
    Fault.UNSEEN_WRITE: Told(
        "as late-write, and nobody reports the landing: only the bytes tell",
        ("stale-content",),
    ),
    Fault.FREE_WHILE_READING: Told(
        "the pages of a running request are freed, and filled for the next one, in the middle of a step",
        ("freed-in-step", "foreign-page-read"),
        also="r-beside",
        elsewhere=("late-write",),
    ),
    Fault.DOUBLE_ISSUE: Told(
        "the pages of a running request are handed out a second time",
        ("foreign-page-read",),
        also="r-beside",
        elsewhere=("double-ownership",),
    ),
    Fault.STALE_REFERENCE: Told(
        "a prefix that was evicted stays findable, and is found after its pages have been filled for somebody else",
        ("foreign-page-read",),
        also="r-after",
        elsewhere=("foreign-page-read",),
    ),
}
