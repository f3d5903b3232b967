"""How much of a cache a finding is about: counted once, and in words."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.wording import for_one, several_of

CAUSE = ["fact", *KEY, "pool", "other_request", "ev2"]
"""What facts have in common that tell of one cause, seen at several events."""


def counted(facts: pl.DataFrame) -> pl.DataFrame:
    """Facts in which the positions of a page count once, however often the same cause showed on it.

    A page that is read at every step is told of at every step; a sum over all of them would say nothing.
    """
    if facts.is_empty():
        return facts
    causes = facts.select(CAUSE).with_row_index("_row").group_by(CAUSE, maintain_order=True)
    seen = causes.agg(_cause=pl.col("_row").min(), _times=pl.len())
    index = facts.with_row_index("_row").join(seen, on=CAUSE, how="left", nulls_equal=True, maintain_order="left")
    pages = index.filter(pl.col("_times") > 1).select("_row", "_cause", "pages").explode("pages")
    fresh = pages.group_by("_cause", "pages").agg(pl.col("_row").min())["_row"].unique()
    again = (pl.col("_times") > 1) & ~pl.col("_row").is_in(fresh.implode())
    counts = index.with_columns(positions=pl.when(again).then(0).otherwise("positions"))
    return counts.drop("_row", "_cause", "_times")


PAGES = several_of("n_pages", "page")
"""The pages of a finding, in words; for the `why` of `_pages.judge`, as is all that follows."""

EXTENT = (
    pl.when(pl.col("positions") > 0)
    .then(pl.format("{} of {}", several_of("positions", "position"), PAGES))
    .otherwise(PAGES)
)
"""The positions and pages of a finding; only the pages where whole pages are meant."""

THEM = for_one("n_pages", "it", "them")
WERE = for_one("n_pages", "was", "were")
"""What refers back to `PAGES`."""

_EXTENT = pl.when(pl.col("positions") > 0).then("positions").otherwise("n_pages")
ALL_THEY = for_one(_EXTENT, "it", "they")
ALL_THEM = for_one(_EXTENT, "it", "them")
ALL_WERE = for_one(_EXTENT, "was", "were")
"""What refers back to `EXTENT`."""

CONTENT = (
    pl.when(pl.col("others") > 0)
    .then(pl.format("what {} wrote", "other_names"))
    .otherwise(pl.lit("what no request wrote"))
)
"""Whose content the other side's is."""

HOLDER = pl.lit("the reuse index, a session or a snapshot")
"""Whoever holds pages and is no request."""
