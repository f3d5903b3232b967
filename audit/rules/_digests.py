"""Fingerprints of page bytes, one row per page and layer, each with the generation and the holder of its page."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules.model import Context

PAGE = ["pool", "page"]

_LAYERED = r"^([^:/]+/\d+):([0-9a-f.]+)$"
"""`SCHEME/SLOTS:LAYER.LAYER...`, as docs/trace-format.md has it."""


def digests(context: Context) -> pl.DataFrame:
    """One row per page of each `content.digest`, in replay order; where it says each layer apart, one per layer.

    Columns: pool, page, ev, ref_ns, at, transfer, digest, layer and layers (its number and how many there are; 0 and 1
    where the digest is of the whole page), basis (what it was taken of: only those with the same can be compared),
    generation (allocations before it, or `gen` where stated), holder and incarnation (who got that generation; null
    for a cache, or when it is unknown) and tenant.
    """
    taken = context.events.filter((pl.col("event") == "content.digest") & pl.col("pool").is_not_null())
    rows = (
        taken.filter(pl.col("pages").list.len() == pl.col("digests").list.len())
        .select("pool", "ev", "ref_ns", "at", "transfer", "gen", page="pages", digest="digests")
        .explode("page", "digest")
        .sort("ev")
        .collect()
    )
    rows = _by_layer(rows)
    if rows.is_empty():
        return rows.with_columns(
            generation=pl.lit(None, pl.Int64),
            holder=pl.lit(None, pl.String),
            incarnation=pl.lit(None, pl.Int32),
            tenant=pl.lit(None, pl.String),
        )
    dated = rows.join_asof(_generations(context, rows), on="ev", by=PAGE, check_sortedness=False)
    return dated.with_columns(generation=pl.coalesce("gen", pl.col("counted").fill_null(0))).drop("gen", "counted")


def _by_layer(rows: pl.DataFrame) -> pl.DataFrame:
    basis = pl.col("digest").str.extract(_LAYERED, 1)
    parts = pl.col("digest").str.extract(_LAYERED, 2).str.split(".")
    apart = rows.with_columns(
        basis=basis.fill_null(""), digest=pl.when(basis.is_null()).then(pl.concat_list("digest")).otherwise(parts)
    ).with_columns(layers=pl.col("digest").list.len().cast(pl.Int64))
    return apart.with_columns(layer=pl.int_ranges(0, "layers")).explode("layer", "digest")


def _generations(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Allocations (a move allocates its target) of the pages in `rows`, counted per page."""
    pools = rows["pool"].unique().to_list()
    wanted = rows.lazy().select(PAGE).unique()
    given = context.page_events.filter((pl.col("event") == "page.alloc") & pl.col("pool").is_in(pools))
    moved = context.events.filter((pl.col("event") == "page.move") & pl.col("to_pool").is_in(pools))
    columns = [*KEY, "ev", "tenant"]
    allocs = pl.concat(
        [
            given.select(*columns, "pool", page="pages"),
            moved.select(*columns, pool="to_pool", page="to_pages"),
        ]
    )
    known = context.requests.lazy().select(*KEY, known_tenant="tenant")
    exploded = allocs.explode("page").join(wanted, on=PAGE, how="semi")
    named = exploded.with_columns(pl.col("incarnation").cast(pl.Int32).fill_null(0)).join(known, on=KEY, how="left")
    return (
        named.sort("ev")
        .select(
            *PAGE,
            "ev",
            "incarnation",
            holder="request",
            tenant=pl.coalesce("tenant", "known_tenant"),
            counted=pl.int_range(1, pl.len() + 1).over(PAGE),
        )
        .collect()
    )


def sent_and_received(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Fingerprints of one position of a transfer at both ends, taken after it began, of the same layer and basis.

    The transfer's page mapping ties them. Columns of the receiving side as in `digests`, plus
    transfer_request, sent_digest, sent_ev, src_pool, src_page.
    """
    sent = rows.filter(pl.col("at") == "send")
    got = rows.filter(pl.col("at").is_in(["receive", "read"]))
    if sent.is_empty() or got.is_empty():
        return pl.DataFrame()
    arrived = _arrivals(_mapping(context, sent, got), got)
    at_source = sent.select(
        "layer", "basis", src_pool="pool", src_page="page", sent_ev="ev", sent_digest="digest", sent_transfer="transfer"
    )
    place = ["src_pool", "src_page", "layer", "basis"]
    named = arrived.join(at_source, left_on=[*place, "transfer"], right_on=[*place, "sent_transfer"])
    nameless = at_source.filter(pl.col("sent_transfer").is_null()).drop("sent_transfer").sort("sent_ev")
    latest = arrived.sort("ev").join_asof(
        nameless, left_on="ev", right_on="sent_ev", by=place, allow_exact_matches=False, check_sortedness=False
    )
    ends = pl.concat(
        [named.filter(pl.col("sent_ev") < pl.col("ev")), latest.filter(pl.col("sent_ev") > pl.col("begin_ev"))]
    )
    return ends.sort("sent_ev").unique(["ev", *PAGE, "layer"], keep="last").sort("ev")


def _arrivals(mapping: pl.DataFrame, got: pl.DataFrame) -> pl.DataFrame:
    """Each fingerprint at the receiving side beside the transfers that it may belong to.

    By the transfer's id where it has one, else by the request that holds the page: never by the page alone, which in a
    long trace has been part of very many transfers.
    """
    after = pl.col("ev") > pl.col("begin_ev")
    owner = (pl.col("holder") == pl.col("transfer_request")).fill_null(True)
    nameless = got.filter(pl.col("transfer").is_null()).drop("transfer")
    held, unheld = nameless.filter(pl.col("holder").is_not_null()), nameless.filter(pl.col("holder").is_null())
    requests = mapping.with_columns(holder="transfer_request")
    parts = [
        mapping.join(got, on=[*PAGE, "transfer"]).filter(owner),
        requests.join(held, on=[*PAGE, "holder"]).filter(after),
        mapping.filter(pl.col("transfer_request").is_null()).join(held, on=PAGE).filter(after),
        mapping.join(unheld, on=PAGE).filter(after),
    ]
    return pl.concat(parts, how="diagonal_relaxed")


def _mapping(context: Context, sent: pl.DataFrame, got: pl.DataFrame) -> pl.DataFrame:
    """Source page -> destination page of each begun transfer between the pools that were fingerprinted.

    `dst_pages` counts from position 0; where it is longer than `src_pages`, the moved part begins at `tok`.
    """
    begun = context.events.filter(
        (pl.col("event") == "transfer.begin")
        & pl.col("src_pool").is_in(sent["pool"].unique().to_list())
        & pl.col("dst_pool").is_in(got["pool"].unique().to_list())
        & (pl.col("src_pages").list.len() > 0)
        & (pl.col("dst_pages").list.len() >= pl.col("src_pages").list.len())
    )
    sizes = (
        context.events.filter(pl.col("event") == "engine.pool")
        .group_by(dst_pool="pool")
        .agg(size=pl.col("page_tokens").last())
    )
    longer = pl.col("dst_pages").list.len() > pl.col("src_pages").list.len()
    first = (pl.col("tok_first").fill_null(0) // pl.col("size").fill_null(1)).cast(pl.Int64)
    skipped = pl.when(longer).then(first).otherwise(0)
    moved = begun.join(sizes, on="dst_pool", how="left").with_columns(
        dst_pages=pl.col("dst_pages").list.slice(skipped, pl.col("src_pages").list.len())
    )
    fitting = moved.filter(pl.col("dst_pages").list.len() == pl.col("src_pages").list.len())
    return (
        fitting.select(
            "transfer",
            "src_pool",
            begin_ev="ev",
            transfer_request="request",
            pool="dst_pool",
            src_page="src_pages",
            page="dst_pages",
        )
        .explode("src_page", "page")
        .collect()
    )
