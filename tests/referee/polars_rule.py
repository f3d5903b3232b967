"""The simplified foreign or unwritten read as one Polars query: the state of a page is filled forward."""

from __future__ import annotations

from typing import Literal

import polars as pl

from tests.referee.exploded import ALLOC, READ, SHARE, WRITE


def flagged(events: pl.LazyFrame, *, engine: Literal["streaming", "in-memory"] = "streaming") -> pl.DataFrame:
    """(ev, slot) of the reads that the rule of `exploded` flags, sorted; `events` in its form and order."""
    act = pl.col("act")
    state = pl.when(act == ALLOC).then(-1).when(act == WRITE).then(pl.col("tenant"))
    suspects = (
        events.with_columns(state.forward_fill().over("slot").alias("state"))
        .filter(
            act == READ,
            pl.col("state").is_null() | (pl.col("state") < 0) | (pl.col("state") != pl.col("tenant")),
        )
        .select("ev", "slot", "request", "state")
        .collect(engine=engine)
    )
    foreign = suspects.filter(pl.col("state") != -1)
    admitted = _admitted(events, foreign.select("ev", "slot", "request").unique())
    left = suspects.join(admitted, on=["ev", "slot"], how="anti")
    return left.select("ev", "slot").unique().sort("ev", "slot")


def _admitted(events: pl.LazyFrame, reads: pl.DataFrame) -> pl.DataFrame:
    """Those of the reads whose request attached to the page in its present generation."""
    if reads.is_empty():
        return reads.select("ev", "slot")
    relevant = events.join(reads.lazy().select("slot").unique(), on="slot", how="semi")
    shares = relevant.filter(pl.col("act") == SHARE).select("ev", "slot", "request", since="ev").collect()
    allocs = relevant.filter(pl.col("act") == ALLOC).select("ev", "slot", alloc="ev").collect()
    return (
        reads.sort("ev")
        .join_asof(shares.sort("ev"), on="ev", by=["slot", "request"], check_sortedness=False)
        .join_asof(allocs.sort("ev"), on="ev", by="slot", check_sortedness=False)
        .filter(pl.col("since") > pl.col("alloc").fill_null(-1))
        .select("ev", "slot")
    )
