"""What the replay saw, as small tables that a store keeps beside the findings: for SQL, which cannot replay."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.pagesets import union_pages
from kvwitness.audit.relations import KEY
from kvwitness.audit.rules.model import Context

FAULTS = (
    "foreign", "unwritten", "not_ready", "open_read_hit", "late_read", "tainted", "uncovered", "unknown",
)  # fmt: skip
"""Facts that make a read unsound."""

_CAUSE = [*KEY, "tenant", "pool", "fact", "op", "other_request", "other_tenant", "other_holder"]


def tables(context: Context, marks: Mapping[str, int]) -> dict[str, pl.DataFrame]:
    """The result tables `read_causes`, `unsound_reads`, `gaps` and `audit_marks`; see `kvwitness.audit.store.views`.

    `marks` (ingest -> highest `ingest_row`) says how far the audit read.
    """
    facts = _of_reads(context)
    return {
        "read_causes": _causes(context, facts),
        "unsound_reads": _unsound(facts),
        "gaps": _gaps(context),
        "audit_marks": pl.DataFrame(
            {"ingest": list(marks), "last_row": list(marks.values())},
            schema={"ingest": pl.String, "last_row": pl.Int64},
        ),
    }


def _of_reads(context: Context) -> pl.DataFrame:
    """Facts of requests' reads, with the event at which each showed."""
    kinds = pl.col("fact").is_in([*FAULTS, "shared"])
    facts = context.facts.filter(kinds & pl.col("request").is_not_null())
    at = _events(context, facts["ev"], "time_ns", "line", "op")
    return facts.join(at, on="ev", how="left", maintain_order="left")


def _events(context: Context, wanted: pl.Series, *columns: str) -> pl.DataFrame:
    """ev, source, seq, ref_ns and `columns` of the events that are wanted."""
    return context.at(wanted, "source", "seq", "ref_ns", *columns)


def _causes(context: Context, facts: pl.DataFrame) -> pl.DataFrame:
    """One row for everything that reads of one request met on pages of one pool from one side."""
    owners = facts.select(_CAUSE).unique(maintain_order=True).with_row_index("group").cast({"group": pl.Int64})
    rows = facts.join(owners, on=_CAUSE, how="left", nulls_equal=True, maintain_order="left")
    widest = (
        rows.group_by("group", "ev").agg(pl.col("positions").sum()).group_by("group").agg(pl.col("positions").max())
    )
    spans = rows.group_by("group").agg(
        reads=pl.col("ev").n_unique().cast(pl.Int64),
        first_ns=pl.col("ref_ns").min(),
        last_ns=pl.col("ref_ns").max(),
        first_source=pl.col("source").sort_by("ev").first(),
        first_seq=pl.col("seq").sort_by("ev").first(),
        ev=pl.col("ev2").min(),
    )
    written = _events(context, rows["ev2"]).select(
        "ev", written_ns="ref_ns", written_source="source", written_seq="seq"
    )
    named = (
        owners.join(union_pages(rows["group"], rows["pages"], rows["gens"]), on="group", how="left")
        .join(widest, on="group", how="left")
        .join(spans, on="group", how="left")
        .join(written, on="ev", how="left")
    )
    columns = [
        *KEY, "tenant", "pool", "soundness", "op", "other_request", "other_tenant", "other_holder", "pages", "gens",
        "positions", "reads", "first_ns", "last_ns", "first_source", "first_seq", "written_ns", "written_source",
        "written_seq",
    ]  # fmt: skip
    lists = pl.col("pages", "gens").fill_null([])
    return named.sort("group").rename({"fact": "soundness"}).with_columns(lists).select(columns)


def _unsound(facts: pl.DataFrame) -> pl.DataFrame:
    """One row per read and kind of fault; admitted sharing is none."""
    faults = facts.filter(pl.col("fact") != "shared")
    key = ["ev", *KEY, "pool", "source", "seq", "line", "time_ns", "op", "fact"]
    heads = faults.select(key).unique(maintain_order=True).with_row_index("group").cast({"group": pl.Int64})
    rows = faults.join(heads, on=key, how="left", nulls_equal=True, maintain_order="left")
    # A page whose rows have several writers stands in several facts.
    once = union_pages(rows["group"], rows["pages"], rows["gens"])
    counted = once.select("group", page_count=pl.col("pages").list.len().cast(pl.Int64))
    summed = rows.group_by("group").agg(pl.col("positions").sum())
    named = heads.join(counted, on="group", how="left").join(summed, on="group", how="left").sort("group")
    return named.drop("group", "ev").rename({"fact": "soundness"}).with_columns(pl.col("page_count").fill_null(0))


def _gaps(context: Context) -> pl.DataFrame:
    """Known losses, with the events on either side instead of the audit's numbers for them."""
    gaps = context.gaps
    at = _events(context, pl.concat([gaps["before_ev"], gaps["after_ev"]])).drop("source")
    before = at.rename({"ev": "before_ev", "seq": "before_seq", "ref_ns": "before_ns"})
    after = at.rename({"ev": "after_ev", "seq": "after_seq", "ref_ns": "after_ns"})
    return (
        gaps.join(before, on="before_ev", how="left", maintain_order="left")
        .join(after, on="after_ev", how="left", maintain_order="left")
        .select("source", "reason", "from_seq", "to_seq", "dropped", "before_seq", "before_ns", "after_seq", "after_ns")
    )
