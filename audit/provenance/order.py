"""One order for events of many observers.

Within a source `seq` orders events. Across sources clocks are only a hint: reference time is the source's time less
its last stated offset, and where transfer or request ids prove that an event came after another one that the clocks
put later, the ids win (as in a Lamport clock, the later event and all that follow it in its source are pushed back).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

I64 = npt.NDArray[np.int64]

PUSHES = 16
"""Rounds of pushing events behind their causes; each round may uncover one more hop between sources."""


def clock_statements(events: pl.LazyFrame) -> pl.LazyFrame:
    """What sources said of their clocks: engine, time_ns, offset_s, uncertainty_s."""
    said = events.filter(pl.col("event") == "engine.clock")
    return said.select("engine", "time_ns", "offset_s", pl.col("uncertainty_s").cast(pl.Float64))


def ordered(events: pl.DataFrame, first_ev: int = 0, clocks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sort events into replay order and add `ev`, `ref_ns`, `unc_ns` and `site`.

    `events` has the columns of `kvwitness.audit.trace`; `ev` counts on from `first_ev`. Where the events are a part of
    a longer record, `clocks` are the `clock_statements` of all of it; by default, those among the events.
    """
    frame = events.with_columns(pl.col("source").fill_null("").alias("source"))
    sources = frame["source"].unique(maintain_order=True)
    codes = _codes(frame["source"], sources)
    sites = [s.split("/", 1)[0] for s in sources]
    said = clock_statements(frame.lazy()).collect() if clocks is None else clocks
    ref, unc = _reference_time(frame["time_ns"].to_numpy(), said, codes, sites)
    key = _keys(frame, codes, len(sources), ref)
    frame = frame.with_columns(
        pl.Series("ref_ns", ref),
        pl.Series("unc_ns", unc).fill_nan(None).cast(pl.Int64),
        pl.Series("site", np.array(sites, dtype=object)[codes] if len(frame) else [], dtype=pl.String),
    )
    if len(key) and np.any(np.diff(key) < 0):
        frame = frame[np.argsort(key, kind="stable")]
    return frame.with_columns(pl.int_range(first_ev, first_ev + len(frame), dtype=pl.Int64).alias("ev"))


def _codes(column: pl.Series, values: pl.Series) -> I64:
    index = pl.DataFrame({"value": values, "code": np.arange(len(values))})
    joined = pl.DataFrame({"value": column}).join(index, on="value", how="left", maintain_order="left")
    return joined["code"].to_numpy().astype(np.int64)


def _reference_time(
    time: I64, clocks: pl.DataFrame, codes: I64, sites: list[str]
) -> tuple[I64, npt.NDArray[np.float64]]:
    """Time less clock offset, and the uncertainty in force (NaN when the source never stated one)."""
    ref = time.copy()
    unc = np.full(len(time), np.nan)
    for (engine,), group in clocks.group_by("engine", maintain_order=True):
        group = group.sort("time_ns", maintain_order=True)
        offset = np.round(group["offset_s"].fill_null(0.0).to_numpy() * 1e9).astype(np.int64)
        width = group["uncertainty_s"].to_numpy() * 1e9
        for code, site in enumerate(sites):
            if site != engine:
                continue
            at = np.flatnonzero(codes == code)
            which = np.clip(np.searchsorted(group["time_ns"].to_numpy(), time[at], side="right") - 1, 0, None)
            ref[at] = time[at] - offset[which]
            unc[at] = width[which]
    return ref, unc


def _keys(frame: pl.DataFrame, codes: I64, n: int, ref: I64) -> I64:
    """Sort keys: reference time, never falling within a source, never before a cause."""
    key = ref.copy()
    seq = frame["seq"]
    numbers = seq.fill_null(-1).to_numpy()
    orders = []
    for code in range(n):
        at = np.flatnonzero(codes == code)
        own = numbers[at]
        if len(own) and own.min() >= 0 and np.any(np.diff(own) < 0):
            at = at[np.argsort(own, kind="stable")]
        orders.append(at)
        key[at] = np.maximum.accumulate(key[at])
    if n > 1:
        causes = _causes(frame, codes)
        for _ in range(PUSHES):
            effect, cause = causes
            late = key[effect] <= key[cause]
            if not late.any():
                break
            np.maximum.at(key, effect[late], key[cause[late]] + 1)
            for at in orders:
                key[at] = np.maximum.accumulate(key[at])
    return _monotonic_ties(key, orders)


def _monotonic_ties(key: I64, orders: list[I64]) -> I64:
    """Where rows of one source do not stand in `seq` order in the input, equal keys must not undo that order."""
    for at in orders:
        if np.any(np.diff(at) < 0):
            same = np.diff(key[at], prepend=key[at[0]] - 1) == 0
            key[at] += np.cumsum(same)
            key[at] = np.maximum.accumulate(key[at])
    return key


def _causes(frame: pl.DataFrame, codes: I64) -> tuple[I64, I64]:
    """Pairs (effect, cause) of rows in different sources that ids put in order.

    What is heard of a transfer elsewhere comes after its begin, a fetch after the offer, and bytes land for a request
    after some transfer for it began.
    """
    rows = frame.with_columns(pl.Series("code", codes), pl.int_range(len(frame), dtype=pl.Int64).alias("row")).select(
        "row", "code", "event", "transfer", "request", "op", "time_ns"
    )
    begins = rows.filter(pl.col("event").is_in(["transfer.begin", "transfer.offer"]))
    if begins.is_empty():
        empty = np.zeros(0, np.int64)
        return empty, empty
    first = begins.sort("event", descending=True, maintain_order=True).unique("transfer", keep="first")
    heard = rows.filter(pl.col("event").is_in(["transfer.begin", "transfer.done", "transfer.failed"])).join(
        first.select("transfer", pl.col("row").alias("cause"), pl.col("code").alias("cause_code")), on="transfer"
    )
    by_request = begins.unique("request", keep="first", maintain_order=True)
    landed = rows.filter((pl.col("event") == "page.write") & (pl.col("op") == "transfer")).join(
        by_request.select("request", pl.col("row").alias("cause"), pl.col("code").alias("cause_code")), on="request"
    )
    pairs = pl.concat([heard, landed]).filter(pl.col("code") != pl.col("cause_code"))
    return pairs["row"].to_numpy(), pairs["cause"].to_numpy()
