"""Where an incident stands follows from what people did, and from what has changed since."""

from __future__ import annotations

import polars as pl
import pytest

from kvwitness.audit.overall.standing import by_verdict, standings, unsettled

INCIDENTS = pl.DataFrame(
    {
        "incident": ["inc-1", "inc-2", "inc-3"],
        "verdict": ["leak", "integrity", "unproven"],
        "findings": [3, 1, 1],
        "first_ns": [10, 20, 30],
        "last_ns": [11, 21, 31],
    }
)


def entries(*deeds: tuple[str, str, dict[str, object]]) -> pl.DataFrame:
    """Of (incident, deed, more), a nanosecond apart."""
    rows = [
        {
            "incident": i,
            "deed": d,
            "by": "ada",
            "text": "t",
            "assignee": None,
            "verdict": "leak",
            "findings": 3,
            "at_ns": n,
        }
        | more
        for n, (i, d, more) in enumerate(deeds)
    ]
    schema = {
        "incident": pl.String, "deed": pl.String, "by": pl.String, "text": pl.String, "assignee": pl.String,
        "verdict": pl.String, "findings": pl.Int64, "at_ns": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema)


@pytest.mark.parametrize(
    ("deeds", "standing"),
    [
        ([], "open"),
        ([("inc-1", "note", {})], "open"),
        ([("inc-1", "acknowledge", {})], "acknowledged"),
        ([("inc-1", "acknowledge", {}), ("inc-1", "close", {})], "closed"),
        ([("inc-1", "close", {}), ("inc-1", "note", {})], "closed"),
        ([("inc-1", "close", {}), ("inc-1", "reopen", {})], "open"),
        ([("inc-1", "close", {"findings": 2})], "changed since closed"),
        ([("inc-1", "close", {"verdict": "integrity"})], "changed since closed"),
        ([("inc-2", "close", {"verdict": "integrity", "findings": 1})], "open"),
    ],
)
def test_the_last_deed_decides(deeds: list[tuple[str, str, dict[str, object]]], standing: str) -> None:
    told = standings(INCIDENTS, entries(*deeds))
    assert told["incident"].to_list() == ["inc-1", "inc-2", "inc-3"]
    assert told["standing"][0] == standing


def test_an_assignment_stays_until_the_next() -> None:
    told = standings(INCIDENTS, entries(("inc-1", "assign", {"assignee": "bob"}), ("inc-1", "note", {})))
    assert told["assignee"].to_list() == ["bob", None, None]
    assert told["said_by"][0] == "ada"


def test_unproven_incidents_wake_nobody() -> None:
    assert unsettled(standings(INCIDENTS, entries()))["incident"].to_list() == ["inc-1", "inc-2"]


def test_the_worst_comes_first() -> None:
    told = by_verdict(standings(INCIDENTS, entries(("inc-1", "close", {}))))
    assert told["verdict"].to_list() == ["leak", "integrity", "unproven"]
    assert told["standing"].to_list() == ["closed", "open", "open"]
