"""Each event beside the one before it of the same source, without a long record in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

I64 = npt.NDArray[np.int64]

AT_ONCE = 1 << 20
"""So many events are looked at at a time."""


def in_turn(events: pl.LazyFrame, columns: list[str], before: list[str]) -> Iterator[pl.DataFrame]:
    """Events in replay order that name their source, a stretch at a time.

    `source`, `ev` and the given columns, with `prev_ev` and `prev_NAME` of those in `before`: of the event before, null
    for the first of a source. A record without events is one empty stretch.
    """
    own = events.filter(pl.col("source").is_not_null()).select("source", "ev", *columns)
    low, high = events.select(low=pl.col("ev").min(), high=pl.col("ev").max()).collect().row(0)
    last = own.head(0).collect()
    for start in range(low or 0, (high or 0) + 1, AT_ONCE):
        stretch = own.filter((pl.col("ev") >= start) & (pl.col("ev") < start + AT_ONCE)).collect()
        both = pl.concat([last, stretch])
        earlier, newest = _one_before(both["source"])
        told = both.with_columns(pl.col("ev", *before).gather(earlier).name.prefix("prev_"))
        yield told[len(last) :]
        last = both[newest]


def _one_before(source: pl.Series) -> tuple[pl.Series, I64]:
    """For each row the one before it of the same source, null for the first; and the last row of each source."""
    codes = source.to_arrow().dictionary_encode().indices.to_numpy()
    if len(codes) and codes.max() < 1 << 16:
        codes = codes.astype(np.uint16)  # of these, numpy sorts without comparing
    at = np.argsort(codes, kind="stable")
    same = codes[at[1:]] == codes[at[:-1]]
    before = np.full(len(at), -1)
    before[at[1:][same]] = at[:-1][same]
    return pl.Series(before).replace(-1, None), at[np.append(~same, True)] if len(at) else at
