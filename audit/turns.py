"""Each event beside the one before it of the same source, without a long record in memory."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

AT_ONCE = 1 << 20
"""So many events are looked at at a time."""


def in_turn(events: pl.LazyFrame, columns: list[str]) -> Iterator[pl.DataFrame]:
    """Events in replay order that name their source, a stretch at a time.

    `source`, `ev` and the given columns, with `prev_ev` and `prev_NAME` of each of them: those of the event before,
    null for the first of a source. A record without events is one empty stretch.
    """
    own = events.filter(pl.col("source").is_not_null()).select("source", "ev", *columns)
    low, high = events.select(low=pl.col("ev").min(), high=pl.col("ev").max()).collect().row(0)
    last = own.head(0).collect()
    for start in range(low or 0, (high or 0) + 1, AT_ONCE):
        stretch = own.filter((pl.col("ev") >= start) & (pl.col("ev") < start + AT_ONCE)).collect()
        both = pl.concat([last, stretch])
        before = pl.col("ev", *columns).shift().over("source").name.prefix("prev_")
        yield both.with_columns(before)[len(last) :]
        last = both.group_by("source", maintain_order=True).tail(1).select(last.columns)
