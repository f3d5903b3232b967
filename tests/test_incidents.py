"""Incidents: their ids, their verdicts, and the verdict of every request."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kvwitness.audit.incidents import group, incident_id, request_verdicts
from kvwitness.audit.pipeline import judge
from kvwitness.audit.rules import get
from kvwitness.audit.rules.model import FINDING_SCHEMA
from tests.provenance.support import frame_of, verdicts
from tests.rules.traces import Trace, context_of

NOTHING = context_of(Trace().received(1, "r1", "t-a"))


def found(**fields: Any) -> dict[str, Any]:
    """A finding of r1."""
    usual = {"rule": "foreign-page-read", "verdict": "leak", "request": "r1", "incarnation": 0, "tenant": "t-a"}
    lists = {"other_requests": [], "other_tenants": [], "pages": [], "gens": [], "evs": [1]}
    return usual | lists | {"time_ns": 5, "why": "it did"} | fields


def grouped(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return group(pl.DataFrame(rows, schema=FINDING_SCHEMA), NOTHING).to_dicts()


# ------------------------------------------------------------------------------------ identity


def test_an_id_depends_on_whom_it_befell_and_on_nothing_else() -> None:
    (one,) = grouped(found())
    (other,) = grouped(found(rule="late-write", verdict="integrity", pool="e/0/kv", pages=[3], time_ns=99, evs=[7]))
    assert one["incident"] == other["incident"] == incident_id("request", "r1", 0)


def test_lives_requests_engines_and_tenants_have_ids_of_their_own() -> None:
    rows = [
        found(),
        found(incarnation=1),
        found(request="r10"),
        found(request=None, incarnation=None, engine="e", tenant=None),
        found(request=None, incarnation=None, engine="f", tenant=None),
        found(request=None, incarnation=None, engine="e", tenant="t-a"),
        found(request=None, incarnation=None, engine="e", tenant=None, rule="limit-mismatch"),
    ]
    assert len({row["incident"] for row in grouped(*rows)}) == len(rows)
    assert {row["incident"] for row in grouped(*rows[::-1])} == {row["incident"] for row in grouped(*rows)}


def test_ids_are_short_and_without_doubt() -> None:
    names = {incident_id("request", f"r{n}", 0) for n in range(2000)}
    assert len(names) == 2000
    assert all(len(name) == 16 and name.startswith("inc-") for name in names)
    assert incident_id("request", "a", "b\x1fc") == incident_id("request", "a", "b\x1fc")


# ------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("verdicts_found", "strongest"),
    [
        (["exposure", "leak", "integrity"], "leak"),
        (["unproven", "integrity"], "integrity"),
        (["unproven", "exposure"], "exposure"),
        (["shared", "unproven"], "unproven"),
    ],
)
def test_an_incident_carries_the_strongest_verdict(verdicts_found: list[str], strongest: str) -> None:
    rows = [found(verdict=v, rule=f"rule-{v}", other_tenants=[f"t-{v}"]) for v in verdicts_found]
    (incident,) = grouped(*rows)
    assert incident["verdict"] == strongest
    assert incident["rules"][0] == f"rule-{strongest}"
    assert set(incident["rules"]) == {f"rule-{v}" for v in verdicts_found}
    assert incident["findings"] == len(rows)


def test_pages_are_those_of_the_strongest_findings() -> None:
    (incident,) = grouped(
        found(pool="e/0/kv", pages=[4, 3], gens=[1, 2]),
        found(pool="e/0/kv", pages=[3, 9], gens=[5, 1]),
        found(pool="d/0/kv", pages=[7]),
        found(verdict="integrity", pool="e/0/kv", pages=[100]),
    )
    assert incident["pools"] == [
        {"pool": "d/0/kv", "pages": [7], "gens": []},
        {"pool": "e/0/kv", "pages": [3, 4, 9], "gens": [5, 1, 1]},
    ]


def test_both_sides_are_named_once() -> None:
    (incident,) = grouped(
        found(other_requests=["r3", "r2"], other_tenants=["t-b"], evs=[4, 2]),
        found(rule="late-write", other_requests=["r2"], other_tenants=["t-c", "t-b"], evs=[2, 9]),
    )
    assert incident["other_requests"] == ["r2", "r3"]
    assert incident["other_tenants"] == ["t-b", "t-c"]
    assert incident["evs"] == [2, 4, 9]


def test_the_strongest_come_first_and_the_earliest_of_those() -> None:
    rows = grouped(
        found(request="r1", verdict="exposure", time_ns=1),
        found(request="r2", time_ns=9),
        found(request="r3", time_ns=3),
        found(request="r4", verdict="unproven", time_ns=0),
        found(request="r5", verdict="integrity", time_ns=2),
    )
    assert [row["request"] for row in rows] == ["r3", "r2", "r5", "r1", "r4"]


def test_no_findings_no_incidents() -> None:
    assert group(pl.DataFrame(schema=FINDING_SCHEMA), NOTHING).is_empty()
    full = group(pl.DataFrame([found(pool="p", pages=[1])], schema=FINDING_SCHEMA), NOTHING)
    assert group(pl.DataFrame(schema=FINDING_SCHEMA), NOTHING).schema == full.schema


# ---------------------------------------------------------------------------- every request


def served(trace: Trace, t: float, request: str) -> Trace:
    """A page, a write and a read, and the page given back."""
    where: dict[str, Any] = {"pool": "e/0/kv", "pages": [3], "request": request}
    trace.add(t, "e/0", "page.alloc", **where)
    trace.add(t + 0.1, "e/0", "page.write", **where, op="forward", tok=[0, 16])
    trace.add(t + 0.2, "e/0", "page.read", **where, op="decode", tok=[0, 16])
    return trace.add(t + 0.3, "e/0", "page.free", **where, reason="finish")


def told(trace: Trace, page_events: int, *rows: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    findings = pl.DataFrame(rows, schema=FINDING_SCHEMA)
    frame = request_verdicts(findings, context_of(trace), page_events)
    return {row["request"]: (row["verdict"], row["missing"]) for row in frame.iter_rows(named=True)}


def pool() -> Trace:
    return Trace().add(0, "e/0", "engine.pool", pool="e/0/kv", page_tokens=16, pages_total=32)


def test_served_with_no_page_events_is_unproven() -> None:
    trace = served(pool().received(1, "r1", "t-a").received(1, "r2", "t-b"), 2, "r1")
    trace.finished(3, "r1", 200).finished(3, "r2", 200)
    assert told(trace, 4) == {"r1": ("clean", None), "r2": ("unproven", "page events of this request")}


def test_a_record_without_pages_proves_nothing() -> None:
    trace = Trace().received(1, "r1", "t-a").finished(2, "r1", 200)
    assert told(trace, 0) == {"r1": ("unproven", "page events")}


@pytest.mark.parametrize("status", [400, 499, 503])
def test_who_was_not_served_has_nothing_to_prove(status: int) -> None:
    trace = Trace().received(1, "r1", "t-a").finished(2, "r1", status).received(1, "r2", "t-a")
    assert told(trace, 0) == {"r1": ("clean", None), "r2": ("clean", None)}


@pytest.mark.parametrize("traffic", ["warmup", "health", "capture", "probe"])
def test_own_traffic_is_clean(traffic: str) -> None:
    trace = Trace().received(1, "r1", "t-a", traffic=traffic).finished(2, "r1", 200)
    trace.received(1, "r2", "t-a", traffic="user").finished(2, "r2", 200)
    assert told(trace, 0) == {"r1": ("clean", None), "r2": ("unproven", "page events")}


def test_the_strongest_finding_decides_and_says_what_is_missing() -> None:
    trace = Trace().received(1, "r1", "t-a").finished(2, "r1", 200).received(1, "r2", "t-a").finished(2, "r2", 200)
    rows = [
        found(verdict="unproven", missing="seq 2 to 8"),
        found(verdict="integrity"),
        found(request="r2", verdict="unproven", missing="seq 2 to 8"),
    ]
    assert told(trace, 0, *rows) == {"r1": ("integrity", None), "r2": ("unproven", "seq 2 to 8")}


def test_findings_of_engines_judge_no_request() -> None:
    trace = served(pool().received(1, "r1", "t-a"), 2, "r1").finished(3, "r1", 200)
    assert told(trace, 4, found(request=None, incarnation=None, engine="e")) == {"r1": ("clean", None)}


def test_two_lives_of_an_id_are_judged_apart() -> None:
    trace = served(pool().received(1, "r1", "t-a"), 2, "r1").finished(3, "r1", 200)
    trace.received(4, "r1", "t-a", incarnation=1).finished(5, "r1", 200, incarnation=1)
    frame = request_verdicts(pl.DataFrame([found(incarnation=1)], schema=FINDING_SCHEMA), context_of(trace), 4)
    assert frame.select("incarnation", "verdict").rows() == [(0, "clean"), (1, "leak")]


def test_a_hit_that_the_policy_admits_is_shared() -> None:
    trace = pool().received(1, "r1", "t-a").received(1, "r2", "t-b")
    where: dict[str, Any] = {"pool": "e/0/kv", "pages": [3]}
    trace.add(2, "e/0", "page.alloc", **where, request="r1")
    trace.add(3, "e/0", "page.write", **where, request="r1", op="forward", tok=[0, 16])
    trace.add(4, "e/0", "page.publish", **where, request="r1", key="k")
    trace.add(5, "e/0", "page.share", **where, request="r2", key="k", tok=[0, 16])
    trace.add(6, "e/0", "page.read", **where, request="r2", op="decode", tok=[0, 16])
    judgement = judge(frame_of(trace.events()))
    assert verdicts(judgement) == {("r1", 0): "clean", ("r2", 0): "shared"}


def test_the_same_record_gives_the_same_answer_in_the_same_order() -> None:
    """Two records begin in mid-life: neither the order of findings nor who is named first is left to chance."""
    trace = Trace()
    for n in range(40):
        for source in ("e/0", "f/0"):
            where = {"pool": f"{source}/kv", "pages": [3], "request": f"r{n}", "tenant": "t-a"}
            trace.add(1 + n, source, "page.read", **where, op="decode", seq=100 + n)
    answers = [judge(frame_of(trace.events()), rules=[get("telemetry-gap")]) for _ in range(6)]
    assert len(answers[0].findings) >= 80
    assert all(answer.findings.equals(answers[0].findings) for answer in answers)
    assert all(answer.incidents.equals(answers[0].incidents) for answer in answers)
