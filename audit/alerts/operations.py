"""What the alerts say about kvwitness itself, in the place where other alerts name a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """One thing that can be wrong with the watching."""

    title: str
    severity: str


OPERATIONS: Mapping[str, Operation] = {
    "check-missed": Operation("A check did not run in time", "high"),
    "check-failed": Operation("A check could not judge the store", "high"),
    "delivery-failing": Operation("Alerts cannot be delivered", "high"),
    "heartbeat-failing": Operation("The heartbeat does not arrive", "high"),
    "notes-unreadable": Operation("Notes about incidents cannot be read", "medium"),
    "store-silent": Operation("No event arrives any more", "high"),
    "acceptance-expiring": Operation("A risk acceptance is about to end", "medium"),
    "acceptance-expired": Operation("A risk acceptance has ended", "high"),
}
"""Name -> what it says, and how urgent it is unless configured otherwise."""
