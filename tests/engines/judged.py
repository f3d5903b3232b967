"""From what an engine's tracer recorded to what the audit says, by the ways that a user takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from kvwitness.audit.api import as_document
from kvwitness.audit.pipeline import judge
from kvwitness.audit.store import Store
from kvwitness.collectors.ring_tail import Tail


@dataclass
class Judged:
    """The events of all rings of a directory, and the audit's document."""

    events: pl.DataFrame
    lost: int
    differing: dict[str, Any]

    @cached_property
    def document(self) -> dict[str, Any]:
        """As `kvwitness audit --format json` prints it."""
        return as_document(judge(self.events))

    @property
    def verdicts(self) -> dict[str, str]:
        """Request -> verdict."""
        verdicts: dict[str, str] = self.document["requests"]
        return verdicts

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Those of requests and those of engines."""
        return [*self.document["findings"], *self.document["engine_findings"]]

    def grave(self) -> list[dict[str, Any]]:
        """Findings that say leak or integrity."""
        return [f for f in self.findings if f["verdict"] in ("leak", "integrity")]

    def kinds(self) -> Counter[str]:
        """Kind -> how many events."""
        return Counter(self.events["event"].to_list())

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        """Events of these kinds (none: all), in order, without what is null."""
        frame = self.events.filter(pl.col("event").is_in(kinds)) if kinds else self.events
        return [
            {name: value for name, value in row.items() if value is not None} for row in frame.iter_rows(named=True)
        ]


def judged(rings: Path, work: Path, others: Collection[Path] = ()) -> Judged:
    """Tail the rings into a store that is made in `work`, and read it back."""
    store = Store.create(work / "store")
    lost, differing = 0, {}
    for directory in (rings, *others):
        with Tail(directory, store) as tail:
            tail.once()
        lost += sum(followed.lost for followed in tail.rings.values())
        differing |= {name: followed.differing for name, followed in tail.rings.items() if followed.differing}
    return Judged(store.events().sort("source", "seq").collect(), lost, differing)
