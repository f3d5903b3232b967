"""The pools of a trace: how large, how divided, whose, and whether their beginning is on record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.kernel import layout as k

PLACED_KINDS = ("kv", "draft", "index")
"""Kinds of pool whose pages stand in token order; state slots, host tiers and encoder entries do not."""

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


@dataclass(frozen=True)
class Pools:
    """Numbers for pools, and the kernel's table of them."""

    names: list[str]
    table: npt.NDArray[np.void]

    @property
    def index(self) -> dict[str, int]:
        """Name -> number."""
        return {name: n for n, name in enumerate(self.names)}


def pool_use(events: pl.DataFrame) -> pl.DataFrame:
    """What events say of pools without being `engine.pool`: one row per pool, source and kind of event.

    Columns of pools and their page lists may be left out where no event has them.
    Columns: pool, source, event, last (highest page number), guess (positions per page that writes imply).
    """
    n = pl.col("pages").list.len().cast(pl.Int64)
    implied = (pl.col("tok_end") - pl.col("tok_first") + n - 1) // n
    guess = pl.when((pl.col("event") == "page.write") & (n > 0)).then(implied)
    named = [
        events.lazy().select("source", "event", pool=pl.col(pool), last=pl.Series(highest(events[pages])), guess=guess)
        for pool, pages in (
            ("pool", "pages"),
            ("pool", "reserved"),
            ("to_pool", "to_pages"),
            ("src_pool", "src_pages"),
            ("dst_pool", "dst_pages"),
        )
        if pool in events.columns and pages in events.columns
    ]
    if not named:
        return joined_use([])
    rows = pl.concat(named).filter(pl.col("pool").is_not_null())
    return rows.group_by(USE_KEY).agg(pl.col("last", "guess").max()).sort(USE_KEY).collect()


def joined_use(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """`pool_use` of a whole from that of its parts."""
    empty = pl.DataFrame(schema=dict.fromkeys(USE_KEY, pl.String) | {"last": pl.Int64, "guess": pl.Int64})
    return pl.concat([empty, *parts]).group_by(USE_KEY).agg(pl.col("last", "guess").max()).sort(USE_KEY)


def highest(lists: pl.Series) -> pl.Series:
    """The highest number in each list; null for one without."""
    array = lists.to_arrow()
    lengths = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    some = np.flatnonzero(lengths)
    most = np.full(len(lists), -1, np.int64)
    if len(some):
        values = array.flatten().to_numpy(zero_copy_only=False)
        most[some] = np.maximum.reduceat(values, (np.cumsum(lengths) - lengths)[some])
    return pl.Series("last", most).replace(-1, None)


def pools_of(use: pl.DataFrame, events: pl.LazyFrame) -> Pools:
    """Find the pools of a trace from `pool_use` of all its parts, and what `engine.pool` says of them.

    Positions per page are taken from the first `engine.pool`; a pool that never had one is given the smallest page
    that fits its writes. Raises `KvwitnessError` for page numbers that no pool could have.
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
        table[n]["ordinals"] = (row["kind"] or "kv") in PLACED_KINDS
        table[n]["sharing"] = {"none": k.SHARE_NONE, "tenant": k.SHARE_TENANT}.get(row["sharing"] or "", k.SHARE_GLOBAL)
        table[n]["source"] = numbers.get(row["source"], -1)
        table[n]["allocs"] = row["allocs"]
        table[n]["known"] = row["first_seq"] is None or row["first_seq"] <= 1
        table[n]["traced"] = row["traced"]
        table[n]["reporters"] = sum({1 << min(numbers[s], k.REPORTERS - 1) for s in row["reporters"] if s in numbers})
        table[n]["gap_ev"] = -1
        base += size
    return Pools(rows["pool"].to_list(), table)
