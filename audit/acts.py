"""Who did what, counted: one row for each kind of event, source, pool, tenant and request, with how many and when.

Most questions that a rule has about many events are about these: which engine gave a request pages, when a source was
first heard. Beside the events of a long record they are few. Where such rows come from several parts of a record, the
same key may stand in several of them.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvwitness.audit.provenance.arrow import numbers, texts

I64 = npt.NDArray[np.int64]

WHO = ["event", "source", "site", "pool", "dst_pool", "tenant", "tenant_source", "request", "incarnation"]
SCHEMA = pl.Schema(
    {
        **dict.fromkeys(WHO[:-1], pl.String()),
        "incarnation": pl.Int32(),  # 0 where none is stated
        "events": pl.Int64(),  # how many
        "first_ev": pl.Int64(),
        "last_ev": pl.Int64(),
        "first_ns": pl.Int64(),  # reference times, of whichever events had the first and the last
        "last_ns": pl.Int64(),
    }
)

_COUNTED = {
    "events": pl.len().cast(pl.Int64),
    "first_ev": pl.col("ev").min(),
    "last_ev": pl.col("ev").max(),
    "first_ns": pl.col("ref_ns").min(),
    "last_ns": pl.col("ref_ns").max(),
}


def acts_of(events: pl.LazyFrame) -> pl.LazyFrame:
    """The acts of events in replay order (`SCHEMA`), by what they begin with."""
    stated = events.with_columns(pl.col("incarnation").cast(pl.Int32).fill_null(0))
    return stated.group_by(WHO).agg(**_COUNTED).select(SCHEMA.names()).sort("first_ev")


def counted(table: pa.Table, ev: I64, ref_ns: I64) -> pl.DataFrame:
    """The same of events in any order, as in `kvwitness.audit.provenance.arrow`; `ev` and `ref_ns` are theirs."""
    columns = {name: texts(table, name) for name in WHO if name not in ("site", "incarnation")}
    lives, life = np.unique(numbers(table, "incarnation", 0), return_inverse=True)
    sizes = [*(len(column.names) for column in columns.values()), len(lives)]
    key = np.zeros(table.num_rows, np.int64)
    if prod(sizes) < 1 << 62:
        for codes, size in zip([*(column.codes for column in columns.values()), life], sizes, strict=True):
            key = key * size + codes
    else:
        stacked = np.stack([*(column.codes for column in columns.values()), life])
        key = np.unique(stacked, axis=1, return_inverse=True)[1].reshape(-1)
    rows = pl.DataFrame({"key": key, "ev": ev, "ref_ns": ref_ns, "row": np.arange(len(key))})
    found = rows.group_by("key").agg(**_COUNTED, row=pl.col("row").first()).sort("first_ev")
    at = found["row"].to_numpy()
    named = {name: column.named(column.codes[at]) for name, column in columns.items()}
    named["source"] = [name or "" for name in named["source"]]
    who = pl.DataFrame({**named, "incarnation": lives[life[at]]}, schema_overrides=_TYPES)
    site = pl.col("source").str.split("/").list.first()
    return pl.concat([who.with_columns(site=site), found.drop("key", "row")], how="horizontal").select(SCHEMA.names())


_TYPES = {name: SCHEMA[name] for name in WHO if name != "site"}
