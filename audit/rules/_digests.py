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
    first (number of the first slot that it was taken of: an event that names a page several times has a digest for
    each stretch of it, one after another), generation (allocations before it, or `gen` where stated), holder and
    incarnation (who got that generation; null for a cache, or when it is unknown) and tenant.
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
    slots = basis.str.extract(r"(\d+)$").cast(pl.Int64).fill_null(0)
    rows = rows.with_columns(first=slots.cum_sum().over("ev", *PAGE) - slots)
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
    begun = _begun(context, sent, got)
    arrived = _at_source(begun, _arrivals(_mapping(begun), got))
    at_source = sent.select(
        "layer",
        "basis",
        src_pool="pool",
        src_page="page",
        src_first="first",
        sent_ev="ev",
        sent_digest="digest",
        sent_transfer="transfer",
    )
    place = ["src_pool", "src_page", "src_first", "layer", "basis"]
    named = arrived.join(at_source, left_on=[*place, "transfer"], right_on=[*place, "sent_transfer"])
    nameless = at_source.filter(pl.col("sent_transfer").is_null()).drop("sent_transfer").sort("sent_ev")
    latest = arrived.sort("ev").join_asof(
        nameless, left_on="ev", right_on="sent_ev", by=place, allow_exact_matches=False, check_sortedness=False
    )
    ends = pl.concat(
        [named.filter(pl.col("sent_ev") < pl.col("ev")), latest.filter(pl.col("sent_ev") > pl.col("begin_ev"))]
    )
    return ends.sort("sent_ev").unique(["ev", *PAGE, "first", "layer"], keep="last").sort("ev")


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


def _begun(context: Context, sent: pl.DataFrame, got: pl.DataFrame) -> pl.DataFrame:
    """Each begun transfer between the pools that were fingerprinted, with where its pages stand in the request.

    transfer, transfer_request, begin_ev, src_pool, pool (the destination), src_pages, dst_pages, src_size, dst_size
    (slots of a page), start (position of the first source page).

    `dst_pages` counts from position 0; where it is longer than `src_pages`, the moved part begins at `tok`. With pages
    of two sizes, the number of tokens has to say which it is; where it does not, nothing is compared.
    """
    stated = context.events.filter(pl.col("event") == "engine.pool")
    sizes = stated.group_by("pool").agg(size=pl.col("page_tokens").last())
    begun = (
        context.events.filter(
            (pl.col("event") == "transfer.begin")
            & pl.col("src_pool").is_in(sent["pool"].unique().to_list())
            & pl.col("dst_pool").is_in(got["pool"].unique().to_list())
            & (pl.col("src_pages").list.len() > 0)
        )
        .select("transfer", "src_pool", "src_pages", "dst_pages", "tokens", transfer_request="request", begin_ev="ev",
                pool="dst_pool", first=pl.col("tok_first").fill_null(0).cast(pl.Int64))
        .join(sizes.rename({"pool": "src_pool", "size": "src_size"}), on="src_pool", how="left")
        .join(sizes.rename({"size": "dst_size"}), on="pool", how="left")
    )  # fmt: skip
    sources, targets = (pl.col(name).list.len().cast(pl.Int64) for name in ("src_pages", "dst_pages"))
    src, dst = pl.col("src_size").cast(pl.Int64), pl.col("dst_size").cast(pl.Int64)
    known = begun.with_columns(
        src_size=pl.coalesce(src, dst, pl.lit(_UNKNOWN)), dst_size=pl.coalesce(dst, src, pl.lit(_UNKNOWN))
    )
    src, dst, first = pl.col("src_size"), pl.col("dst_size"), pl.col("first")
    moved = first // pl.when(src == _UNKNOWN).then(1).otherwise(src) * src
    from_there = -(-(first % src + pl.col("tokens")) // src) == sources
    from_zero = -(-(first + pl.col("tokens")) // src) == sources
    start = (
        pl.when(src == dst)
        .then(pl.when(targets > sources).then(moved).otherwise(0))
        .when(first == 0)
        .then(0)
        .when(from_there & ~from_zero)
        .then(moved)
        .when(from_zero & ~from_there)
        .then(0)
    )
    placed = known.with_columns(start=start.cast(pl.Int64))
    return placed.filter(pl.col("start") + (sources - 1) * src < targets * dst).drop("first", "tokens").collect()


_UNKNOWN = 1 << 20
"""Stands for the slots of a page where nobody said how many they are."""


def _mapping(begun: pl.DataFrame) -> pl.DataFrame:
    """Of each transfer the destination pages that it fills, with the position at which each begins (`place`)."""
    number = pl.int_ranges(0, pl.col("dst_pages").list.len(), dtype=pl.Int64)
    pages = begun.drop("src_pages").with_columns(number=number).explode("dst_pages", "number")
    return pages.with_columns(page="dst_pages", place=pl.col("number") * pl.col("dst_size")).drop("dst_pages", "number")


def _at_source(begun: pl.DataFrame, arrived: pl.DataFrame) -> pl.DataFrame:
    """Fingerprints at the receiving side with the source page, and the slot of it, that has the same position.

    Those of whole pages mean nothing beside those of pages of another size.
    """
    arrived = arrived.filter((pl.col("basis") != "") | (pl.col("src_size") == pl.col("dst_size")))
    beyond = pl.col("place") + pl.col("first") - pl.col("start")
    told = arrived.with_columns(number=beyond // pl.col("src_size"), src_first=beyond % pl.col("src_size"))
    numbers = pl.int_ranges(0, pl.col("src_pages").list.len(), dtype=pl.Int64)
    sources = begun.select("begin_ev", src_page="src_pages", number=numbers).explode("src_page", "number")
    return told.join(sources, on=["begin_ev", "number"])
