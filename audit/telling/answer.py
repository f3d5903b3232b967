"""What an audit found, beside the events that it judged: where every question about a finding begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from kvwitness.audit.api import request_name
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.incidents import incident_id
from kvwitness.audit.pipeline import Judgement, judge
from kvwitness.audit.store import Store
from kvwitness.audit.store.views import RESULTS
from kvwitness.audit.trace import polars_schema
from kvwitness.audit.wording import listing

ARRIVAL = ["ingest", "ingest_row"]
"""Columns that a store adds to its events; they name a row for good."""
_SHOWN = 5


@dataclass(frozen=True)
class Answer:
    """The tables of one audit, and the events to look things up in."""

    events: pl.LazyFrame
    """Columns of `kvwitness.audit.trace`; read them through `collect`."""
    findings: pl.DataFrame
    incidents: pl.DataFrame
    requests: pl.DataFrame
    """request, incarnation, tenant, verdict, missing."""
    undecided: pl.DataFrame
    """rule, missing."""
    run: dict[str, Any] | None = None
    """The run whose tables these are (columns of the result table `audit_run`); None: nothing was judged, or
    it was not kept."""
    judged: bool = True
    reading: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)

    @classmethod
    def of_store(cls, store: Store, *, required: bool = True) -> Answer:
        """The newest run of a store. Without one: a `StoreError` when it is `required`, else empty tables."""
        events, reading = _named(store.events()), store.reading
        if not required and not store.result_runs():
            nothing = _nothing()
            tables = nothing.findings, nothing.incidents, nothing.requests, nothing.undecided
            return cls(events, *tables, judged=False, reading=reading)
        names = "findings", "incidents", "request_verdicts", "undecided"
        findings, incidents, requests, undecided = (store.result(name) for name in names)
        run = store.result("audit_run").row(0, named=True)
        return cls(events, findings, incidents, requests, undecided, run=run, reading=reading)

    def as_of_now(self, store: Store) -> Answer:
        """The same judgement beside the events that the store has now."""
        return replace(self, events=_named(store.events()))

    @classmethod
    def of_trace(cls, judgement: Judgement, events: pl.DataFrame) -> Answer:
        """A judgement of events that are held in memory."""
        tables = judgement.findings, judgement.incidents, judgement.requests, judgement.undecided
        return cls(_named(events.lazy()), *tables)

    def collect(self, events: pl.LazyFrame, *, arrival: bool = False) -> pl.DataFrame:
        """Collect a selection of `events` in the order of arrival, with or without the columns that say so."""
        with self.reading():
            frame = events.collect()
        known = [name for name in ARRIVAL if name in frame.columns]
        return frame.sort(known).drop([] if arrival else known) if known else frame

    @property
    def stored(self) -> bool:
        """Whether the events have numbers of their own from a store, and findings name them by those."""
        return "places" in self.findings.columns and set(ARRIVAL) <= set(self.events.collect_schema())

    @property
    def proof_key(self) -> list[str]:
        """Columns by which findings name the events that prove them: where two records in a store use the same source
        names and numbers, only its own tell events apart."""
        return ARRIVAL if self.stored else ["source", "seq"]

    def proofs(self, findings: pl.DataFrame) -> pl.DataFrame:
        """rule and `proof_key` of each event that a finding names as its proof."""
        named, key = ("places" if self.stored else "seqs"), self.proof_key
        rows = findings.select("rule", named).explode(named).drop_nulls(named).unnest(named)
        return rows.select("rule", *key).drop_nulls(key[-1])

    def incident(self, name: str) -> dict[str, Any] | None:
        """The incident of this id, or of the one id that begins so; None when there is none.

        Raises `KvwitnessError` when several ids begin so.
        """
        begins = name if name.startswith("inc-") else f"inc-{name}"
        found = self.incidents.filter(pl.col("incident").str.starts_with(begins))
        if len(found) > 1:
            shown = listing(found["incident"].to_list(), _SHOWN)
            raise KvwitnessError(
                f"{len(found)} incidents begin with {begins}: {shown}.",
                "Give more of the id.",
            )
        return found.row(0, named=True) if len(found) else None

    def request(self, name: str) -> dict[str, Any] | None:
        """The verdict of a request (`id`, or `id#2` for a later life under the same id); None if unknown."""
        for row in self.requests.filter(pl.col("request") == name.rsplit("#", 1)[0]).iter_rows(named=True):
            if request_name(row["request"], row["incarnation"]) == name:
                return row
        return self._named_plainly(name)

    def _named_plainly(self, name: str) -> dict[str, Any] | None:
        """A request whose id itself holds the sign, or whose only life is not the first."""
        rows = self.requests.filter(pl.col("request") == name)
        return rows.row(0, named=True) if len(rows) == 1 else None

    def incident_of(self, request: str, incarnation: int | None) -> dict[str, Any] | None:
        """What befell a request, if anything did."""
        found = self.incidents.filter(pl.col("incident") == incident_id("request", request, incarnation or 0))
        return found.row(0, named=True) if len(found) else None

    def findings_of(self, incident: dict[str, Any]) -> pl.DataFrame:
        """The findings that an incident consists of, the strongest verdict first."""
        if incident["request"] is not None:
            mine = pl.col("request").eq_missing(incident["request"]) & pl.col("incarnation").eq_missing(
                incident["incarnation"]
            )
        else:
            mine = (
                pl.col("request").is_null()
                & pl.col("rule").is_in(incident["rules"])
                & pl.col("engine").eq_missing(incident["engine"])
                & pl.col("tenant").eq_missing(incident["tenant"])
            )
        strong = (pl.col("verdict") == incident["verdict"]).alias("_strong")
        rows = self.findings.filter(mine)
        return rows.sort(strong, descending=True, maintain_order=True)


def result_table(store: Store, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A table of the newest audit, or some of its columns.

    Before the first audit, or after one by a version that did not write it: no rows.
    """
    view = next(view for view in RESULTS if view.name == name)
    runs = store.result_runs()
    if runs and name in runs[-1].tables:
        return store.result(name, columns=columns)
    return view.empty() if columns is None else view.empty().select(columns)


def _named(events: pl.LazyFrame) -> pl.LazyFrame:
    """An event of nobody comes from the source "", as findings say it."""
    return events.with_columns(pl.col("source").fill_null(""))


def _nothing() -> Judgement:
    """The judgement of an empty record by no rule."""
    return judge(pl.DataFrame(schema=polars_schema()), rules=[])
