"""Everything on record about one incident or one request, gathered in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from kvwitness.audit import relations
from kvwitness.audit.api import request_name
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.telling.answer import ARRIVAL, Answer
from kvwitness.audit.telling.traces import requests_of_trace, trace_id
from kvwitness.audit.wording import listing

CONTEXT = ["engine.pool", "engine.limits", "engine.clock"]
"""Events about engines that say how to read the others."""
_DECISIVE = ["source", "seq", "event", "request", "incarnation", "transfer"]
"""Columns that say whether an event belongs into a dossier."""


@dataclass(frozen=True)
class Dossier:
    """An incident with its request, a request without an incident, or an incident of an engine."""

    incident: Mapping[str, Any] | None
    """A row of the incidents; None when nothing was found."""
    request: Mapping[str, Any] | None
    """A row in `relations.REQUEST_SCHEMA`; None when the incident belongs to no request."""
    verdict: str
    missing: str | None
    findings: list[dict[str, Any]]
    """The strongest verdict first."""
    events: pl.DataFrame
    """The request's own events, those of its transfers, those that prove a finding, and what engines said of
    themselves; in replay order, with `ev` counted among them, `ref_ns`, `unc_ns`, `site` and `rules` (ids of
    the rules whose findings name the event)."""
    tenants: Mapping[str, str]
    """Tenants of the other requests that findings name."""
    look: Callable[[pl.Expr, list[pl.Expr]], pl.DataFrame] = field(repr=False)
    """Looks into the whole record: selects (second) among the events for which an expression (first) is true."""

    @property
    def name(self) -> str | None:
        """The request as it is called; None when there is none."""
        return request_name(self.request["request"], self.request["incarnation"]) if self.request else None

    @property
    def own(self) -> pl.DataFrame:
        """The request's own events."""
        if self.request is None:
            return self.events.clear()
        return self.events.filter(_of(self.request["request"], self.request["incarnation"]))

    @property
    def proofs(self) -> pl.DataFrame:
        """The events that prove a finding."""
        return self.events.filter(pl.col("rules").list.len() > 0)


def open_dossier(answer: Answer, name: str) -> Dossier:
    """The dossier of an incident (by id, or by the beginning of it) or of a request (by id).

    Raises `KvwitnessError` when nothing, or more than one thing, goes by that name.
    """
    verdict = answer.request(name)
    incident = answer.incident_of(verdict["request"], verdict["incarnation"]) if verdict else answer.incident(name)
    if verdict is None and incident is None:
        raise KvwitnessError(
            f"There is no incident and no request {name!r} on record.",
            "`kvwitness incidents` lists the incidents; a request goes by the id that the engine gave it.",
        )
    if incident is not None and incident["request"] is not None and verdict is None:
        verdict = answer.request(request_name(incident["request"], incident["incarnation"]))
    return _gathered(answer, incident, verdict)


def open_request(answer: Answer, name: str) -> Dossier:
    """The dossier of a request, also where nothing was judged yet. `name` may be the trace id that it carries.

    Raises `KvwitnessError` when it is unknown, or when several requests carry the trace id.
    """
    verdict = answer.request(name) if answer.judged else _unjudged(answer, name)
    if verdict is None and (trace := trace_id(name)) is not None:
        return open_request(answer, _the_one_of(answer, trace))
    if verdict is None:
        raise KvwitnessError(
            f"There is no request {name!r} on record.",
            "A request goes by the id that the engine gave it; a later life under the same id is ID#1 and so on.",
        )
    return _gathered(answer, answer.incident_of(verdict["request"], verdict["incarnation"]), verdict)


def _the_one_of(answer: Answer, trace: str) -> str:
    """The request that carries a trace id. Raises `KvwitnessError` when there is none, or more than one."""
    found = answer.collect(requests_of_trace(answer.events, trace))["request"].to_list()
    if not found:
        raise KvwitnessError(
            f"No request on record goes by {trace!r}, or carries it as its trace id.",
            "Trace ids come in with spans and logs (`kvwitness collect`), or as a field trace_id of an event.",
        )
    if len(found) > 1:
        raise KvwitnessError(f"{len(found)} requests carry the trace id {trace}: {listing(found, 12)}.", "Name one.")
    return str(found[0])


def _unjudged(answer: Answer, name: str) -> dict[str, Any] | None:
    """A request of which nothing but its events is known; None when no event names it."""
    life = pl.col("incarnation").fill_null(0).cast(pl.Int64)
    mine = answer.events.filter(pl.col("request").is_in([name, name.rsplit("#", 1)[0]]))
    lives = answer.collect(mine.select("request", life).unique().sort("request", "incarnation"))
    for request, incarnation in lives.iter_rows():
        if name in (request, request_name(request, incarnation)):
            return {"request": request, "incarnation": incarnation, "verdict": "unjudged", "missing": None}
    return None


def _gathered(answer: Answer, incident: dict[str, Any] | None, verdict: dict[str, Any] | None) -> Dossier:
    findings = answer.findings_of(incident) if incident else answer.findings.clear()
    request, incarnation = (verdict["request"], verdict["incarnation"]) if verdict else (None, None)
    proofs = answer.proofs(findings)
    events = ordered(_with_rules(_selected(answer, request, incarnation, proofs), proofs))
    return Dossier(
        incident=incident,
        request=_relation(events, request, incarnation),
        verdict=incident["verdict"] if incident else (verdict["verdict"] if verdict else "clean"),
        missing=verdict["missing"] if verdict else None,
        findings=findings.to_dicts(),
        events=events,
        tenants=_tenants(answer, findings),
        look=lambda chosen, columns: answer.collect(answer.events.filter(chosen).select(columns)),
    )


def _of(request: str, incarnation: int | None) -> pl.Expr:
    return (pl.col("request") == request) & (pl.col("incarnation").fill_null(0) == (incarnation or 0))


def _selected(answer: Answer, request: str | None, incarnation: int | None, proofs: pl.DataFrame) -> pl.DataFrame:
    """The events that belong into the dossier, in the order of arrival, with the columns by which proofs name them."""
    mine = pl.lit(False) if request is None else _of(request, incarnation)
    wanted = mine.fill_null(False) | pl.col("event").is_in(CONTEXT)
    if request is not None:
        named = answer.events.filter(mine & pl.col("transfer").is_not_null())
        transfers = answer.collect(named.select("transfer").unique())["transfer"].to_list()
        moves = pl.col("transfer").is_in(transfers) & pl.col("request").is_null()
        wanted = wanted | moves.fill_null(False)
    named_by = proofs.select(answer.proof_key).unique()
    if not answer.stored:
        marks = named_by.lazy().with_columns(_proof=pl.lit(True))
        marked = answer.events.join(marks, on=answer.proof_key, how="left", maintain_order="left")
        return answer.collect(marked.filter(wanted | pl.col("_proof").is_not_null()).drop("_proof"), arrival=True)
    return _stored(answer, wanted, named_by)


def _stored(answer: Answer, wanted: pl.Expr, proving: pl.DataFrame) -> pl.DataFrame:
    """Events of a store that are wanted, or that prove something.

    Page lists are nearly all of a store, so which events these are is found without reading any; then they are read
    from the stretches in which they lie, which says to the reader what it can leave out.
    """
    with answer.reading():
        found = answer.events.select(*_DECISIVE, *ARRIVAL).filter(wanted).collect()
    places = pl.concat([found.select(ARRIVAL), proving]).unique()
    parts = [
        answer.collect(
            answer.events.filter((pl.col("ingest") == ingest) & pl.col("ingest_row").is_between(first, last)).join(
                places.lazy(), on=ARRIVAL, how="semi"
            ),
            arrival=True,
        )
        for ingest, first, last in stretches(places)
    ]
    return pl.concat(parts) if parts else answer.collect(answer.events.clear(), arrival=True)


def stretches(places: pl.DataFrame, most: int = 64) -> list[tuple[str, int, int]]:
    """(ingest, first row, last row) of few stretches that hold all places (`ARRIVAL`), in order."""
    rows = places.sort(ARRIVAL)
    gap = 20_000
    while True:
        far = pl.col("ingest_row").diff().over("ingest").fill_null(gap + 1) > gap
        grouped = rows.with_columns(group=far.cum_sum()).group_by("group", maintain_order=True)
        found = grouped.agg(
            pl.col("ingest").first(), first=pl.col("ingest_row").min(), last=pl.col("ingest_row").max()
        ).select("ingest", "first", "last")
        if len(found) <= max(most, rows["ingest"].n_unique()):
            return list(found.iter_rows())
        gap *= 8


def _with_rules(events: pl.DataFrame, proofs: pl.DataFrame) -> pl.DataFrame:
    """`rules`: those which name the event as their proof; the columns of arrival have done their part."""
    key = [name for name in proofs.columns if name != "rule"]
    named = proofs.group_by(key).agg(rules=pl.col("rule").unique().sort())
    joined = events.join(named, on=key, how="left", maintain_order="left")
    told = joined.with_columns(pl.col("rules").fill_null(pl.lit([], pl.List(pl.String))))
    return told.drop(ARRIVAL, strict=False)


def _relation(events: pl.DataFrame, request: str | None, incarnation: int | None) -> dict[str, Any] | None:
    """What the events say of the request itself."""
    if request is None:
        return None
    found = relations.requests(events.lazy().filter(_of(request, incarnation) | pl.col("request").is_null()))
    return found.row(0, named=True) if len(found) else None


def _tenants(answer: Answer, findings: pl.DataFrame) -> dict[str, str]:
    others = findings["other_requests"].explode().drop_nulls().unique().to_list()
    known = answer.requests.filter(pl.col("request").is_in(others) & pl.col("tenant").is_not_null())
    return dict(known.select("request", "tenant").iter_rows())
