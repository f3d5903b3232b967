"""What is called observed has everything; what lacks something says what."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.overall import coverage
from kvwitness.audit.store.views.results import GAPS, KINDS_SEEN

LIFE = ["page.alloc", "page.free", "page.write", "page.read"]


def kinds(*rows: tuple[str, str, str | None]) -> pl.DataFrame:
    """Of (source, event, pool): ten events each, from 0 to 100."""
    told = [{"source": s, "event": e, "pool": p, "events": 10, "first_ns": 0, "last_ns": 100} for s, e, p in rows]
    return pl.DataFrame(told, schema=KINDS_SEEN.empty().schema)


def gaps(*sources: str) -> pl.DataFrame:
    told = [{"source": source, "reason": "hole", "dropped": 4} for source in sources]
    return pl.DataFrame(told, schema=GAPS.empty().schema)


def test_a_pool_is_observed_when_nothing_of_a_life_is_missing() -> None:
    whole = kinds(*[("e/0", kind, "e/0/kv") for kind in LIFE])
    (row,) = coverage.pools(whole, gaps()).to_dicts()
    assert (row["pool"], row["state"], row["lacks"], row["engine"]) == ("e/0/kv", "observed", "", "e")


def test_a_pool_without_reads_is_watched_in_part_and_says_so() -> None:
    seen = kinds(*[("e/0", kind, "e/0/kv") for kind in LIFE[:3]])
    (row,) = coverage.pools(seen, gaps()).to_dicts()
    assert (row["state"], row["lacks"]) == ("in part", "no page.read")


def test_a_pool_that_is_only_announced_is_blind() -> None:
    (row,) = coverage.pools(kinds(("e/0", "engine.pool", "e/0/kv")), gaps()).to_dicts()
    assert row["state"] == "blind"


def test_a_loss_on_any_rank_of_the_engine_is_told_of_its_pools() -> None:
    whole = kinds(*[("e/0", kind, "e/0/kv") for kind in LIFE], *[("f/0", kind, "f/0/kv") for kind in LIFE])
    lost, other = coverage.pools(whole, gaps("e/1", "e/1")).to_dicts()
    assert (lost["state"], lost["lacks"]) == ("in part", "2 losses of telemetry")
    assert other["state"] == "observed"


def test_a_source_that_fell_silent_is_not_observed() -> None:
    seen = pl.concat([kinds(("a", "page.read", "a/kv")), kinds(("b", "page.read", "b/kv"))])
    seen = seen.with_columns(last_ns=pl.when(pl.col("source") == "b").then(50).otherwise("last_ns").cast(pl.Int64))
    states = {row["source"]: (row["state"], row["lacks"]) for row in coverage.sources(seen, gaps()).to_dicts()}
    assert states == {"a": ("observed", ""), "b": ("in part", "silent at the end of the record")}


def test_rules_without_input_are_blind_and_those_in_doubt_are_watched_in_part() -> None:
    undecided = pl.DataFrame({"rule": ["freed-in-step"], "missing": ["step.begin"]})
    findings = pl.DataFrame(
        {
            "rule": ["late-read", "late-write", "telemetry-gap"],
            "verdict": ["unproven", "leak", "unproven"],
        }
    )
    states = {row["rule"]: row for row in coverage.rules(undecided, findings, kinds()).to_dicts()}
    assert (states["freed-in-step"]["state"], states["freed-in-step"]["lacks"]) == ("blind", "step.begin")
    assert (states["late-read"]["state"], states["late-read"]["lacks"]) == ("in part", "evidence in 1 case")
    assert (states["late-write"]["state"], states["late-write"]["findings"]) == ("observed", 1)
    assert states["telemetry-gap"]["state"] == "observed"


def test_a_rule_is_watched_since_all_that_it_needs_is_on_record_and_blind_since_the_record_began() -> None:
    seen = kinds(("e/0", "page.write", "e/0/kv"), ("e/0", "page.read", "e/0/kv"), ("e/1", "page.read", "e/1/kv"))
    seen = seen.with_columns(first_ns=pl.Series([3, 9, 7]))
    undecided = pl.DataFrame({"rule": ["double-ownership"], "missing": ["page.alloc"]})
    told = coverage.rules(undecided, pl.DataFrame(schema={"rule": pl.String, "verdict": pl.String}), seen)
    since = dict(told.select("rule", "first_ns").iter_rows())
    assert (since["read-before-ready"], since["double-ownership"], since["salt-crossing"]) == (7, 3, 3)
