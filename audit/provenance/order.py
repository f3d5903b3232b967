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
import pyarrow as pa

from kvwitness.audit.provenance.arrow import numbers, table_of, texts

I64 = npt.NDArray[np.int64]

PUSHES = 16
"""Rounds of pushing events behind their causes; each round may uncover one more hop between sources."""


def clock_statements(events: pl.LazyFrame) -> pl.LazyFrame:
    """What sources said of their clocks: engine, time_ns, offset_s, uncertainty_s."""
    said = events.filter(pl.col("event") == "engine.clock")
    return said.select("engine", "time_ns", "offset_s", pl.col("uncertainty_s").cast(pl.Float64))


BEGINS = ("transfer.begin", "transfer.offer")
"""Events without which nothing is known to come after an event of another source."""
_HEARD = (*BEGINS, "transfer.done", "transfer.failed")

IDS = ("transfer", "request", "op")
KEYS = ["source", "seq", "time_ns", "event", *IDS]
"""Event columns that decide the order; `IDS` only where there are `BEGINS`."""


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


def replay_order(events: pa.Table, clocks: pl.DataFrame) -> Order:
    """Find the order of events from their `KEYS` and what sources said of their clocks (`clock_statements`).

    `events` as in `kvwitness.audit.provenance.arrow`.
    """
    codes, sources = _sources(events)
    rows = _by_code(codes, len(sources))
    sites = [source.split("/", 1)[0] for source in sources]
    ref, unc = _reference_time(numbers(events, "time_ns"), clocks, rows, sites)
    key = _keys(events, codes, rows, ref)
    rank = np.arange(len(key))
    if np.any(key[1:] < key[:-1]):
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
    said = clock_statements(events.lazy()).collect() if clocks is None else clocks
    order = replay_order(table_of(events.select(KEYS)), said)
    return placed(events, order.rank + first_ev, order.ref_ns, order.unc_ns)


def _sources(events: pa.Table) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A number for the source of each event, and their names; without a source, it is one of no name."""
    said = texts(events, "source")
    names: dict[str, int] = {}
    table = np.array([names.setdefault(name or "", len(names)) for name in said.names], np.int32)
    return table[said.codes], list(names)


def _reference_time(
    time: I64, clocks: pl.DataFrame, rows: list[I64], sites: list[str]
) -> tuple[I64, npt.NDArray[np.float64]]:
    """Time less clock offset, and the uncertainty in force (NaN when the source never stated one).

    `rows` and `sites` are those of each source.
    """
    ref = time.copy()
    unc = np.full(len(time), np.nan)
    for (engine,), group in clocks.group_by("engine", maintain_order=True):
        group = group.sort("time_ns", maintain_order=True)
        offset = np.round(group["offset_s"].fill_null(0.0).to_numpy() * 1e9).astype(np.int64)
        width = group["uncertainty_s"].to_numpy() * 1e9
        for at, site in zip(rows, sites, strict=True):
            if site != engine:
                continue
            if len(group) == 1:
                ref[at] -= offset[0]
                unc[at] = width[0]
                continue
            which = np.clip(np.searchsorted(group["time_ns"].to_numpy(), time[at], side="right") - 1, 0, None)
            ref[at] = time[at] - offset[which]
            unc[at] = width[which]
    return ref, unc


def _by_code(codes: npt.NDArray[np.int32], n: int) -> list[I64]:
    """The rows of each code, ascending."""
    narrow = codes.astype(np.uint16) if n <= 1 << 16 else codes  # of these, numpy sorts without comparing
    return np.split(np.argsort(narrow, kind="stable"), np.cumsum(np.bincount(codes, minlength=n))[:-1]) if n else []


def _keys(events: pa.Table, codes: npt.NDArray[np.int32], rows: list[I64], ref: I64) -> I64:
    """Sort keys: reference time, never falling within a source, never before a cause."""
    key = ref.copy()
    seq = numbers(events, "seq")
    orders = []
    for at in rows:
        own = seq[at]
        if len(own) and own.min() >= 0 and np.any(own[1:] < own[:-1]):
            at = at[_in_turn(own, ref[at])]
        orders.append(at)
        key[at] = np.maximum.accumulate(key[at])
    if len(rows) > 1:
        effect, cause = _causes(events, codes, key, seq)
        for _ in range(PUSHES):
            late = key[effect] <= key[cause]
            if not late.any():
                break
            np.maximum.at(key, effect[late], key[cause[late]] + 1)
            for at in orders:
                key[at] = np.maximum.accumulate(key[at])
    return _monotonic_ties(key, orders)


def _in_turn(seqs: I64, times: I64) -> I64:
    """The order of a source's rows: by `seq`, unless it gives a number to two events (it was restarted, and kept its
    name): then by its own clock, lest its two lives be shuffled into one."""
    order = np.lexsort((times, seqs))
    again = (np.diff(seqs[order]) == 0) & (np.diff(times[order]) != 0)
    return np.lexsort((seqs, times)) if again.any() else np.argsort(seqs, kind="stable")


def _monotonic_ties(key: I64, orders: list[I64]) -> I64:
    """Where rows of one source do not stand in `seq` order in the input, equal keys must not undo that order."""
    for at in orders:
        if np.any(at[1:] < at[:-1]):
            same = np.diff(key[at], prepend=key[at[0]] - 1) == 0
            key[at] += np.cumsum(same)
            key[at] = np.maximum.accumulate(key[at])
    return key


def _causes(events: pa.Table, codes: npt.NDArray[np.int32], key: I64, seq: I64) -> tuple[I64, I64]:
    """Pairs (effect, cause) of rows in different sources that ids put in order.

    What is heard of a transfer elsewhere comes after its begin, a fetch after the offer, and bytes land for a request
    after some transfer for it began. Of several begins with one id (chunks, or a room that is used again) the earliest
    by `key` and `seq` is meant, wherever it stands in the input.
    """
    said = texts(events, "event")
    none = np.zeros(0, np.int64)
    if not said.among(BEGINS).any():
        return none, none
    told = np.flatnonzero(said.among(_HEARD) | (said.among(["page.write"]) & texts(events, "op").among(["transfer"])))
    told_of = {name: texts(events, name) for name in ("event", "transfer", "request", "op")}
    rows = pl.DataFrame(
        {
            "row": told,
            "code": codes[told].astype(np.int64),
            "key": key[told],
            "seq": seq[told],
            **{name: column.named(column.codes[told]) for name, column in told_of.items()},
        },
        schema=dict.fromkeys(("row", "code", "key", "seq"), pl.Int64) | dict.fromkeys(told_of, pl.String),
    )
    begins = rows.filter(pl.col("event").is_in(list(BEGINS))).sort("key", "seq", maintain_order=True)
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
