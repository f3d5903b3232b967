"""How much of a cache a finding is about: counted once, and in words."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY

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


def number(column: str) -> pl.Expr:
    """A count with a comma between thousands."""
    digits = pl.col(column).cast(pl.String).str.reverse()
    return digits.str.replace_all(r"(\d{3})", "${1},").str.strip_suffix(",").str.reverse()


def _several(column: str, one: str, many: str) -> pl.Expr:
    return pl.when(pl.col(column) == 1).then(pl.lit(one)).otherwise(pl.format(many, number(column)))


PAGES = _several("n_pages", "1 page", "{} pages")
"""The pages of a finding, in words; for the `why` of `_pages.judge`, as is all that follows."""

EXTENT = (
    pl.when(pl.col("positions") > 0)
    .then(pl.format("{} of {}", _several("positions", "1 position", "{} positions"), PAGES))
    .otherwise(PAGES)
)
"""The positions and pages of a finding; only the pages where whole pages are meant."""

THEM = pl.when(pl.col("n_pages") == 1).then(pl.lit("it")).otherwise(pl.lit("them"))
WERE = pl.when(pl.col("n_pages") == 1).then(pl.lit("was")).otherwise(pl.lit("were"))
"""What refers back to `PAGES`."""

CONTENT = (
    pl.when(pl.col("others") > 0)
    .then(pl.format("what {} wrote", "other_names"))
    .otherwise(pl.lit("what no request wrote"))
)
"""Whose content the other side's is."""

HOLDER = pl.lit("the reuse index, a session or a snapshot")
"""Whoever holds pages and is no request."""
