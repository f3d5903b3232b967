"""The pools of a trace: how large, how divided, whose, and whether their beginning is on record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.arrow import ListColumn, as_numpy, column, listed, numbers, table_of, texts
from kvwitness.audit.provenance.kernel import layout as k

PLACED_KINDS = ("kv", "draft", "index")
"""Kinds of pool whose pages stand in token order; state slots, host tiers and encoder entries do not."""

I64 = npt.NDArray[np.int64]

MAX_PAGES = 1 << 28
"""Page numbers are physical and dense; a larger one is a mistake in the trace, not a pool."""

DEFAULT_TOKENS = 16

PAGE_EVENTS = [
    "page.alloc",
    "page.free",
    "page.share",
    "page.publish",
    "page.unpublish",
    "page.write",
    "page.read",
    "page.copy",
    "page.move",
]


USE_KEY = ["pool", "source", "event"]
_USE = dict.fromkeys(USE_KEY, pl.String) | {"last": pl.Int64, "guess": pl.Int64}


@dataclass(frozen=True)
class Pools:
    """Numbers for pools, and the kernel's table of them."""

    names: list[str]
    table: npt.NDArray[np.void]

    @property
    def index(self) -> dict[str, int]:
        """Name -> number."""
        return {name: n for n, name in enumerate(self.names)}


_NAMED = (
    ("pool", "pages"),
    ("pool", "reserved"),
    ("to_pool", "to_pages"),
    ("src_pool", "src_pages"),
    ("dst_pool", "dst_pages"),
)
"""Columns that name a pool, and those with page numbers of it."""


def pool_use(events: pl.DataFrame | pa.Table) -> pl.DataFrame:
    """What events say of pools without being `engine.pool`: one row per pool, source and kind of event.

    `events` in a frame, or as in `kvwitness.audit.provenance.arrow`; columns that no event has may be left out.
    Columns: pool, source, event, last (highest page number), guess (positions per page that writes imply).
    """
    table = table_of(events)
    source, event = texts(table, "source"), texts(table, "event")
    who = source.codes.astype(np.int64) * len(event.names) + event.codes
    width = len(source.names) * len(event.names)
    lists = {pages: listed(found) for _, pages in _NAMED if (found := column(table, pages)) is not None}
    guess = _implied(table, event.among(["page.write"]), lists.get("pages"))
    parts = []
    for name, pages in _NAMED:
        pool = texts(table, name)
        if len(pool.names) == 1 or (pages == "reserved" and pages not in lists):
            continue
        last = highest(lists[pages]) if pages in lists else np.full(table.num_rows, -1)
        rows = pl.DataFrame({"key": pool.codes.astype(np.int64) * width + who, "last": last, "guess": guess})
        most = rows.filter(pl.col("key") < (len(pool.names) - 1) * width).group_by("key").agg(pl.all().max())
        key = most["key"].to_numpy()
        parts.append(
            pl.DataFrame(
                {
                    "pool": pool.named(key // width),
                    "source": source.named(key % width // len(event.names)),
                    "event": event.named(key % len(event.names)),
                    "last": most["last"].replace(-1, None),
                    "guess": most["guess"].replace(-1, None),
                },
                schema=_USE,
            )
        )
    return parts[0].sort(USE_KEY) if len(parts) == 1 else joined_use(parts)


def _implied(table: pa.Table, writes: npt.NDArray[np.bool_], pages: ListColumn | None) -> I64:
    """Positions per page that each write implies; -1 for what is none, or does not say."""
    guess = np.full(table.num_rows, -1)
    first, end = column(table, "tok_first"), column(table, "tok_end")
    if first is None or end is None or pages is None:
        return guess
    n = pages.length
    said = np.flatnonzero(writes & (n > 0) & as_numpy(first.is_valid()) & as_numpy(end.is_valid()))
    span = numbers(table, "tok_end")[said] - numbers(table, "tok_first")[said]
    guess[said] = (span + n[said] - 1) // n[said]
    return guess


def joined_use(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """`pool_use` of a whole from that of its parts."""
    return (
        pl.concat([pl.DataFrame(schema=_USE), *parts])
        .group_by(USE_KEY)
        .agg(pl.col("last", "guess").max())
        .sort(USE_KEY)
    )


def highest(lists: ListColumn) -> I64:
    """The highest number in each list; -1 for one without."""
    most = np.full(len(lists.length), -1)
    single = lists.length == 1
    most[single] = lists.flat[lists.start[single]]
    more = np.flatnonzero(lists.length > 1)
    if len(more):
        bounds = np.stack([lists.start[more], lists.start[more] + lists.length[more]], axis=1).reshape(-1)
        bounds = bounds[:-1] if bounds[-1] == len(lists.flat) else bounds
        most[more] = np.maximum.reduceat(lists.flat, bounds)[::2]
    return most


def pools_of(use: pl.DataFrame, events: pl.LazyFrame) -> Pools:
    """Find the pools of a trace from `pool_use` of all its parts, and what `engine.pool` says of them.

    Positions per page are taken from the first `engine.pool`; a pool that never had one is given the smallest page
    that fits its writes, which says nothing of where in a page table a position belongs. Raises `KvwitnessError` for
    page numbers that no pool could have.
    """
    sizes = use.group_by("pool").agg(
        pl.col("last").max().fill_null(-1),
        pl.col("guess").max(),
        pl.col("source").filter(pl.col("event") == "engine.pool").first().alias("declared_by"),
        pl.col("source").filter(pl.col("event").is_in(PAGE_EVENTS)).first().alias("seen_by"),
        pl.col("source").unique().alias("reporters"),
        pl.col("event").is_in(["page.alloc", "page.move"]).any().alias("allocs"),
        pl.col("event").is_in(["page.alloc", "page.move", "page.write", "page.copy"]).any().alias("traced"),
    )
    declared = (
        events.filter(pl.col("event") == "engine.pool")
        .group_by("pool")
        .agg(
            pl.col("page_tokens").first(),
            pl.col("pages_total").max(),
            pl.col("kind").first(),
            pl.col("sharing").first(),
        )
    )
    first_seq = events.group_by("source").agg(pl.col("seq").min().alias("first_seq"))
    table = (
        sizes.lazy()
        .join(declared, on="pool", how="left")
        .with_columns(pl.coalesce("declared_by", "seen_by").alias("source"))
        .join(first_seq, on="source", how="left")
        .sort("pool")
        .collect()
    )
    return _numbered(table, sources_of(events))


def sources_of(events: pl.LazyFrame) -> list[str]:
    """Who observed the events, by name."""
    return events.select(pl.col("source").unique().sort()).collect()["source"].to_list()


def _numbered(rows: pl.DataFrame, sources: list[str]) -> Pools:
    numbers = {s: n for n, s in enumerate(sources)}
    table = np.zeros(len(rows), k.POOL)
    base = 0
    for n, row in enumerate(rows.iter_rows(named=True)):
        size = max(row["last"] + 1, row["pages_total"] or 0, 1)
        if size > MAX_PAGES:
            raise KvwitnessError(
                f"pool {row['pool']} would have {size:,} pages",
                f"Page numbers above {MAX_PAGES:,} are not physical pages; check what the source calls a page.",
            )
        guess = row["guess"]
        table[n]["base"] = base
        table[n]["size"] = size
        table[n]["tokens"] = row["page_tokens"] or (
            1 << max(0, int(guess - 1).bit_length()) if guess else DEFAULT_TOKENS
        )
        table[n]["ordinals"] = row["page_tokens"] is not None and (row["kind"] or "kv") in PLACED_KINDS
        table[n]["sharing"] = {"none": k.SHARE_NONE, "tenant": k.SHARE_TENANT}.get(row["sharing"] or "", k.SHARE_GLOBAL)
        table[n]["source"] = numbers.get(row["source"], -1)
        table[n]["allocs"] = row["allocs"]
        table[n]["known"] = row["first_seq"] is None or row["first_seq"] <= 1
        table[n]["traced"] = row["traced"]
        table[n]["reporters"] = sum({1 << min(numbers[s], k.REPORTERS - 1) for s in row["reporters"] if s in numbers})
        table[n]["gap_ev"] = -1
        base += size
    return Pools(rows["pool"].to_list(), table)
