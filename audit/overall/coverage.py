"""What is being watched, and what is not: per pool, per source and per rule, and nothing called seen that was not."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules import RULES
from kvwitness.audit.rules.model import Verdict
from kvwitness.audit.wording import several, several_of

PROVEN, PARTLY, BLIND = "observed", "in part", "blind"
_URGENCY = {BLIND: 0, PARTLY: 1, PROVEN: 2}
LIFE = ("page.alloc", "page.free", "page.write", "page.read")
"""Kinds of event without which the life of a page cannot be told."""

_SILENT_AFTER = 0.1
"""A source is called silent when it said nothing for this share of the record's length at its end."""


def pools(kinds: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """One row per pool of which anything is on record, the least observed first: pool, engine, state, lacks, events,
    losses, first_ns, last_ns.

    `kinds` is the result table `kinds_seen`, `gaps` that of the losses. state is `observed` where all kinds of event of
    a page's life are on record and nothing was lost, `in part` where something is missing (`lacks` says what), `blind`
    where nothing says who read or wrote its pages.
    """
    about = kinds.filter(pl.col("pool").is_not_null() & pl.col("event").str.starts_with("page."))
    named = kinds.filter(pl.col("pool").is_not_null())
    rows = named.group_by("pool").agg(
        events=pl.col("events").sum(), first_ns=pl.col("first_ns").min(), last_ns=pl.col("last_ns").max()
    )
    seen = about.group_by("pool").agg(pl.col("event").unique())
    losses = _losses_by_site(gaps)
    site = pl.col("pool").str.split("/").list.first()
    joined = rows.join(seen, on="pool", how="left").with_columns(engine=site)
    joined = joined.join(losses, left_on="engine", right_on="site", how="left")
    lacks = pl.concat_list(
        [
            pl.when(pl.col("event").list.contains(kind).fill_null(False)).then(None).otherwise(pl.lit(f"no {kind}"))
            for kind in LIFE
        ]
    ).list.drop_nulls()
    told = joined.with_columns(lacks=lacks, losses=pl.col("losses").fill_null(0))
    lost = pl.when(pl.col("losses") > 0).then(several_of("losses", "loss of telemetry", "losses of telemetry"))
    never_seen = pl.col("lacks").list.contains("no page.read") & pl.col("lacks").list.contains("no page.write")
    state = (
        pl.when(never_seen)
        .then(pl.lit(BLIND))
        .when((pl.col("lacks").list.len() > 0) | (pl.col("losses") > 0))
        .then(pl.lit(PARTLY))
        .otherwise(pl.lit(PROVEN))
    )
    return told.select(
        "pool",
        "engine",
        state=state,
        lacks=pl.concat_list("lacks", lost).list.drop_nulls().list.join(", "),
        events="events",
        first_ns="first_ns",
        last_ns="last_ns",
    ).sort(pl.col("state").replace_strict(_URGENCY, return_dtype=pl.Int64), "pool")


def sources(kinds: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """One row per source: source, events, first_ns, last_ns, losses, lost (events, as far as known), state, lacks."""
    rows = kinds.group_by("source").agg(
        events=pl.col("events").sum(), first_ns=pl.col("first_ns").min(), last_ns=pl.col("last_ns").max()
    )
    lost = gaps.group_by("source").agg(losses=pl.len().cast(pl.Int64), lost=pl.col("dropped").sum())
    told = rows.join(lost, on="source", how="left").with_columns(pl.col("losses", "lost").fill_null(0))
    begin, end = pl.col("first_ns").min(), pl.col("last_ns").max()
    silent = (end - pl.col("last_ns")) > (end - begin) * _SILENT_AFTER
    lacks = pl.concat_list(
        pl.when(pl.col("losses") > 0).then(several_of("losses", "loss of telemetry", "losses of telemetry")),
        pl.when(silent).then(pl.lit("silent at the end of the record")),
    ).list.drop_nulls()
    state = pl.when(lacks.list.len() > 0).then(pl.lit(PARTLY)).otherwise(pl.lit(PROVEN))
    return told.select(
        "source", "events", "first_ns", "last_ns", "losses", "lost", state=state, lacks=lacks.list.join(", ")
    ).sort("source")


def rules(undecided: pl.DataFrame, findings: pl.DataFrame, kinds: pl.DataFrame) -> pl.DataFrame:
    """One row per rule: rule, title, state, lacks, findings (proved), unproven (findings that lack evidence), first_ns.

    first_ns is since when: from there on everything that the rule needs is on record, or, where it is blind, anything
    at all. `kinds` is the result table `kinds_seen`.
    """
    missing: Mapping[str, str] = dict(undecided.select("rule", "missing").iter_rows())
    proved = findings.filter(pl.col("verdict") != "unproven")["rule"].value_counts()
    # That something is missing is all that some rules can find; they lack nothing themselves.
    able = [rule.id for rule in RULES.values() if set(rule.verdicts) != {Verdict.UNPROVEN}]
    in_doubt = findings.filter((pl.col("verdict") == "unproven") & pl.col("rule").is_in(able))
    open_ = in_doubt["rule"].value_counts()
    counts, doubts = dict(proved.iter_rows()), dict(open_.iter_rows())
    seen = dict(kinds.group_by("event").agg(pl.col("first_ns").min()).drop_nulls().iter_rows())
    begun = min(seen.values(), default=None)
    rows = [
        {
            "rule": rule.id,
            "title": rule.title,
            "state": BLIND if rule.id in missing else PARTLY if doubts.get(rule.id) else PROVEN,
            "lacks": missing.get(rule.id) or _in_doubt(doubts.get(rule.id, 0)),
            "findings": int(counts.get(rule.id, 0)),
            "unproven": int(doubts.get(rule.id, 0)),
            "first_ns": begun if rule.id in missing else max((seen[k] for k in rule.needs if k in seen), default=begun),
        }
        for rule in RULES.values()
    ]
    return pl.DataFrame(rows, schema_overrides={"first_ns": pl.Int64})


def _in_doubt(cases: int) -> str:
    return f"evidence in {several(cases, 'case')}" if cases else ""


def _losses_by_site(gaps: pl.DataFrame) -> pl.DataFrame:
    site = pl.col("source").str.split("/").list.first()
    return gaps.group_by(site=site).agg(losses=pl.len().cast(pl.Int64))
