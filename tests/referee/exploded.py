"""The frame that the one-rule referees judge: one row per page of every alloc, write, read and share.

Columns, in replay order: `ev` int64 (position of the event), `slot` int64 (pool code << 32 | page), `act`
uint8 (`ALLOC`, `WRITE`, `READ` or `SHARE`), `request` int64, `tenant` int32 (the request's, or `NOBODY`).

The referees know one simplified rule. Before a read of a page, take the last alloc or write of that page,
whole pages only. The read is flagged when there is none, when it is an alloc, and when it is a write by
another tenant, unless the reader attached to the page by a share after the page's last alloc. Token ranges,
copies, moves, frees and namespaces are beyond them.
"""

from __future__ import annotations

import polars as pl

ALLOC, WRITE, READ, SHARE = 0, 1, 2, 3
NOBODY = -2

SCHEMA = pl.Schema({"ev": pl.Int64, "slot": pl.Int64, "act": pl.UInt8, "request": pl.Int64, "tenant": pl.Int32})
_ACTS = {"page.alloc": ALLOC, "page.write": WRITE, "page.read": READ, "page.share": SHARE}


def exploded(events: pl.DataFrame) -> pl.DataFrame:
    """`events` in the event schema, in replay order; `ev` becomes the row number."""
    numbered = events.with_row_index("ev")
    tenants = (
        numbered.filter(pl.col("tenant").is_not_null() & pl.col("request").is_not_null())
        .group_by("request", maintain_order=True)
        .agg(pl.col("tenant").first())
        .with_columns((pl.col("tenant").rank("dense") - 1).cast(pl.Int32))
    )
    return (
        numbered.filter(pl.col("event").is_in(list(_ACTS)), pl.col("phase").fill_null("end") == "end")
        .select("ev", "event", "pool", "request", "pages")
        .join(tenants, on="request", how="left", maintain_order="left")
        .with_columns(
            pl.col("ev").cast(pl.Int64),
            pl.col("event").replace_strict(_ACTS, return_dtype=pl.UInt8).alias("act"),
            (pl.col("pool").rank("dense") - 1).cast(pl.Int64).alias("base"),
            (pl.col("request").rank("dense") - 1).cast(pl.Int64).fill_null(-1),
            pl.col("tenant").fill_null(NOBODY),
        )
        .explode("pages")
        .drop_nulls("pages")
        .with_columns((pl.col("base") * 2**32 + pl.col("pages").cast(pl.Int64)).alias("slot"))
        .select(*SCHEMA)
    )
