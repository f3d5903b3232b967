"""One order for events of many observers.

Within a source `seq` orders events. Across sources clocks are only a hint: reference time is the source's time less
its last stated offset, and where transfer or request ids prove that an event came after another one that the clocks
put later, the ids win (as in a Lamport clock, the later event and all that follow it in its source are pushed back).
"""

from __future__ import annotations

from dataclasses import dataclass

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


KEYS = ["source", "seq", "time_ns", "event", "transfer", "request", "op"]
"""Event columns that decide the order."""


@dataclass(frozen=True)
class Order:
    """The replay order of events, and what was found on the way; arrays in the order of the input."""

    rank: I64
    """Place of each event in replay order, from 0."""
    ref_ns: I64
    """Time less the source's clock offset."""
    unc_ns: npt.NDArray[np.float64]
    """Uncertainty of that; NaN when the source never stated one."""

    @property
    def rows(self) -> I64:
        """The input's rows in replay order."""
        rows = np.empty_like(self.rank)
        rows[self.rank] = np.arange(len(self.rank))
        return rows

    def of(self, rows: I64, low: int) -> Order:
        """Of some rows, counting places from `low` on."""
        return Order(self.rank[rows] - low, self.ref_ns[rows], self.unc_ns[rows])

    @classmethod
    def joined(cls, orders: list[Order]) -> Order:
        """Of the events of several, one after the other."""
        return cls(*(np.concatenate([getattr(o, name) for o in orders]) for name in ("rank", "ref_ns", "unc_ns")))

    @classmethod
    def of_nothing(cls) -> Order:
        """When there are no events."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def replay_order(events: pl.DataFrame, clocks: pl.DataFrame) -> Order:
    """Find the order of events from their `KEYS` and what sources said of their clocks (`clock_statements`)."""
    frame = events.with_columns(pl.col("source").fill_null(""))
    sources = frame["source"].unique(maintain_order=True)
    codes = _codes(frame["source"], sources)
    sites = [s.split("/", 1)[0] for s in sources]
    ref, unc = _reference_time(frame["time_ns"].to_numpy(), clocks, codes, sites)
    key = _keys(frame, codes, len(sources), ref)
    rank = np.empty(len(key), np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    return Order(rank, ref, unc)


def placed(events: pl.DataFrame, ev: I64, ref_ns: I64, unc_ns: npt.NDArray[np.float64]) -> pl.DataFrame:
    """Events with what the order adds to each: `ref_ns`, `unc_ns`, `site` and `ev`; sorted by `ev`."""
    frame = events.with_columns(
        pl.col("source").fill_null(""),
        pl.Series("ref_ns", ref_ns),
        pl.Series("unc_ns", unc_ns).fill_nan(None).cast(pl.Int64),
        pl.col("source").fill_null("").str.split("/").list.first().alias("site"),
        pl.Series("ev", ev),
    )
    return frame if np.all(np.diff(ev) > 0) else frame[np.argsort(ev)]


def ordered(events: pl.DataFrame, first_ev: int = 0, clocks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sort events into replay order and add `ev`, `ref_ns`, `unc_ns` and `site`.

    `events` has the columns of `kvwitness.audit.trace`; `ev` counts on from `first_ev`. Where the events are a part of
    a longer record, `clocks` are the `clock_statements` of all of it; by default, those among the events.
    """
    order = replay_order(events, clock_statements(events.lazy()).collect() if clocks is None else clocks)
    return placed(events, order.rank + first_ev, order.ref_ns, order.unc_ns)


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
    rows = _by_code(codes, len(sites))
    for (engine,), group in clocks.group_by("engine", maintain_order=True):
        group = group.sort("time_ns", maintain_order=True)
        offset = np.round(group["offset_s"].fill_null(0.0).to_numpy() * 1e9).astype(np.int64)
        width = group["uncertainty_s"].to_numpy() * 1e9
        for code, site in enumerate(sites):
            if site != engine:
                continue
            at = rows[code]
            which = np.clip(np.searchsorted(group["time_ns"].to_numpy(), time[at], side="right") - 1, 0, None)
            ref[at] = time[at] - offset[which]
            unc[at] = width[which]
    return ref, unc


def _by_code(codes: I64, n: int) -> list[I64]:
    """The rows of each code, ascending."""
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=n))[:-1]) if n else []


def _keys(frame: pl.DataFrame, codes: I64, n: int, ref: I64) -> I64:
    """Sort keys: reference time, never falling within a source, never before a cause."""
    key = ref.copy()
    seq = frame["seq"]
    numbers = seq.fill_null(-1).to_numpy()
    orders = []
    for at in _by_code(codes, n):
        own = numbers[at]
        if len(own) and own.min() >= 0 and np.any(np.diff(own) < 0):
            at = at[_in_turn(own, ref[at])]
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


def _in_turn(numbers: I64, times: I64) -> I64:
    """The order of a source's rows: by `seq`, unless it gives a number to two events (it was restarted, and kept its
    name): then by its own clock, lest its two lives be shuffled into one."""
    order = np.lexsort((times, numbers))
    again = (np.diff(numbers[order]) == 0) & (np.diff(times[order]) != 0)
    return np.lexsort((numbers, times)) if again.any() else np.argsort(numbers, kind="stable")


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
