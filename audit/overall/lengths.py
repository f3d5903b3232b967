"""Prompt lengths against the limits on their path, from the index of requests that the audit keeps."""

from __future__ import annotations

import polars as pl

BINS = 60
_BANDS = ((0.5, "below half of the limit"), (0.9, "half to 90 %"), (1.0, "90 % up to the limit"))


def _measured(index: pl.DataFrame) -> pl.DataFrame:
    """Requests of users whose true length is on record."""
    return index.filter((pl.col("traffic") == "user") & pl.col("prompt_tokens").is_not_null())


def by_length(index: pl.DataFrame, bins: int = BINS) -> pl.DataFrame:
    """from_tokens, until_tokens, outcome, requests: in about so many steps of one width, those with requests."""
    rows = _measured(index)
    if rows.is_empty():
        return pl.DataFrame(
            schema={"from_tokens": pl.Int64, "until_tokens": pl.Int64, "outcome": pl.String, "requests": pl.Int64}
        )
    longest = rows["prompt_tokens"].max()
    assert isinstance(longest, int)
    width = _round(longest / bins)
    first = pl.col("prompt_tokens") // width * width
    counted = rows.group_by(first.alias("from_tokens"), "outcome").agg(requests=pl.len().cast(pl.Int64))
    return counted.with_columns(until_tokens=pl.col("from_tokens") + width).sort("from_tokens", "outcome")


def _round(width: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ..."""
    size = 1
    while True:
        for step in (1, 2, 5):
            if step * size >= width:
                return step * size
        size *= 10


def by_outcome(index: pl.DataFrame) -> pl.DataFrame:
    """One row per band of the share of the limit: band, and how many requests ended in which way."""
    share = pl.col("prompt_tokens") / pl.col("limit_tokens")
    names = [name for _, name in _BANDS] + ["beyond the limit", "no limit on record"]
    band = pl.lit(len(_BANDS), pl.UInt8)  # numbers, for a fleet has millions of requests
    for number, (upper, _) in reversed(list(enumerate(_BANDS))):
        band = pl.when(share <= upper).then(pl.lit(number, pl.UInt8)).otherwise(band)
    numbered = pl.when(share.is_null()).then(pl.lit(len(_BANDS) + 1, pl.UInt8)).otherwise(band)
    counted = _measured(index).group_by(numbered.alias("band"), "outcome").agg(requests=pl.len().cast(pl.Int64))
    if counted.is_empty():
        return counted.with_columns(pl.col("band").cast(pl.String))
    wide = counted.pivot(on="outcome", index="band", values="requests", sort_columns=True).fill_null(0).sort("band")
    return wide.with_columns(pl.col("band").replace_strict(dict(enumerate(names)), return_dtype=pl.String))


def limits_met(index: pl.DataFrame) -> pl.DataFrame:
    """engine, tokens: the enforced limits that counted for any request."""
    met = index.drop_nulls("limit_tokens").select(engine="limit_engine", tokens="limit_tokens")
    return met.unique().sort("tokens", "engine")
