"""Reads that went on after the event which states them, as only the whole record shows."""

from __future__ import annotations

import polars as pl

REMOTE = ["transfer", "offload", "copy"]
"""Operations of reads by copiers, which go on after the event."""


def ended_later(events: pl.LazyFrame, page_events: pl.LazyFrame) -> list[int]:
    """Reads (`ev`) of one who computes, stated without a phase, of which an event of phase `end` comes later.

    Those of copiers are not among them: they are kept open in any case. `page_events`: the events with page lists.
    """
    key = ["request", "incarnation", "pool", "op", "tok_first", "tok_end"]
    reads = events.filter(pl.col("event") == "page.read").with_columns(
        pl.col("incarnation").fill_null(0), pl.col("op").fill_null("decode")
    )
    reads = reads.filter(~pl.col("op").is_in(REMOTE)).select("ev", "phase", *key)
    ends = reads.filter(pl.col("phase") == "end").collect()
    plain = reads.filter(pl.col("phase").is_null()).join(ends.lazy().select(key), on=key, how="semi", nulls_equal=True)
    begun = plain.collect() if len(ends) else ends.clear()
    if begun.is_empty():
        return []
    both = pl.concat([begun, ends])
    lists = page_events.select("ev", "pages").join(both.lazy().select("ev"), on="ev", how="semi").collect()
    text = pl.col("pages").list.eval(pl.element().cast(pl.String)).list.join(",")  # no join goes by lists
    named = both.join(lists, on="ev").with_columns(pages=text)
    last = named.filter(pl.col("phase") == "end").group_by(*key, "pages").agg(end=pl.col("ev").max())
    matched = named.filter(pl.col("phase").is_null()).join(last, on=[*key, "pages"], nulls_equal=True)
    return matched.filter(pl.col("ev") < pl.col("end"))["ev"].to_list()
