"""Shares of published pages, each beside the publication that it attaches to."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules.model import Context

NAMES = ["salt_hmac", "adapter", "media", "epoch", "model"]
"""Fields of a namespace that are compared."""


def ns_field(name: str, column: str = "ns") -> pl.Expr:
    """One field of a canonical namespace string; null where it is absent."""
    return pl.col(column).str.json_path_match(f"$.{name}")


def publications(context: Context) -> pl.DataFrame:
    """Every publication, with its namespace, its publisher's tenant and what the publisher asked for."""
    return context.once("publications", lambda: _publications(context))


def _publications(context: Context) -> pl.DataFrame:
    published = context.events.filter((pl.col("event") == "page.publish") & pl.col("key").is_not_null())
    asked = context.requests.lazy().select(*KEY, asked_salt="salt_hmac", asked_adapter="adapter", asked_tenant="tenant")
    rows = published.select(
        "pool",
        "key",
        pub_ev="ev",
        pub_pages="pages",
        pub_ns="ns",
        pub_digest="digest",
        request="request",
        incarnation=pl.col("incarnation").cast(pl.Int32).fill_null(0),
        pub_named_tenant="tenant",
    ).join(asked, on=KEY, how="left")
    unknown = pl.col("pub_ns").is_null()
    rows = rows.with_columns(
        *[ns_field(name, "pub_ns").alias(f"pub_{name}") for name in NAMES],
        pub_tenant=pl.coalesce("pub_named_tenant", "asked_tenant"),
    ).with_columns(
        pub_salt_hmac=pl.when(unknown).then("asked_salt").otherwise("pub_salt_hmac"),
        pub_adapter=pl.when(unknown).then("asked_adapter").otherwise("pub_adapter"),
    )
    return rows.rename({"request": "pub_request", "incarnation": "pub_incarnation"}).sort("pub_ev").collect()


def shares(context: Context) -> pl.DataFrame:
    """Every share by key of pages that somebody else published, with that publication.

    The publication is the latest of the key in the pool, at or before the share, whose pages include the
    shared ones; of a key that had been published in other pools only, the latest there, for a tier may keep
    copies of what it stands for. A share without one (never published, or moved since) is not here: it is
    judged by the page state. `ns_known` tells whether the share stated its namespace; if not, salt and adapter are the
    request's own.
    """
    return context.once("shares", lambda: _shares(context))


def _shares(context: Context) -> pl.DataFrame:
    published = publications(context)
    shared = keyed(context.events.filter((pl.col("event") == "page.share") & pl.col("key").is_not_null())).sort("ev")
    rows = shared.select(
        *KEY, "ev", "ref_ns", "site", "pool", "key", "pages", "tok_first", "tok_end", "digest", "ns"
    ).collect()
    known = context.requests.select(
        *KEY,
        "tenant",
        "traffic",
        "prompt_tokens",
        "max_new_tokens",
        own_salt="salt_hmac",
        own_adapter="adapter",
    )
    rows = rows.join(known, on=KEY, how="left", maintain_order="left")
    matched = _attach(rows, published)
    stated = pl.col("ns").is_not_null()
    matched = matched.with_columns(
        *[ns_field(name).alias(f"share_{name}") for name in NAMES], ns_known=stated
    ).with_columns(
        share_salt_hmac=pl.when(stated).then("share_salt_hmac").otherwise("own_salt"),
        share_adapter=pl.when(stated).then("share_adapter").otherwise("own_adapter"),
    )
    own = (pl.col("pub_request") == pl.col("request")) & (pl.col("pub_incarnation") == pl.col("incarnation"))
    return matched.filter(~own.fill_null(False)).sort("ev")


def _attach(rows: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    inside = pl.col("pages").list.set_difference("pub_pages").list.len() == 0
    latest = rows.join_asof(published, left_on="ev", right_on="pub_ev", by=["pool", "key"], check_sortedness=False)
    good = latest.filter(inside.fill_null(False))
    # The latest publication names other pages: look at all earlier ones of the key. Few shares get here.
    rest = rows.join(good.select("ev"), on="ev", how="anti")
    older = rest.join(published, on=["pool", "key"]).filter((pl.col("pub_ev") <= pl.col("ev")) & inside)
    older = older.sort("pub_ev").unique("ev", keep="last").select(good.columns)
    elsewhere = rows.join(published.select("pool", "key"), on=["pool", "key"], how="anti").join_asof(
        published.drop("pool"), left_on="ev", right_on="pub_ev", by="key", check_sortedness=False
    )
    return pl.concat([good, older, elsewhere.filter(pl.col("pub_ev").is_not_null()).select(good.columns)])


def distinct_tenants(left: str = "tenant", right: str = "pub_tenant") -> pl.Expr:
    """Both tenants are known and differ."""
    return (pl.col(left) != pl.col(right)).fill_null(False)


def per_pair(rows: pl.DataFrame, *extra: pl.Expr) -> pl.DataFrame:
    """Gather shares of one request from one publisher in one pool: pages united, proving events listed."""
    gathered = rows.group_by(*KEY, "tenant", "pool", "pub_request", "pub_tenant", maintain_order=True)
    merged = gathered.agg(
        *extra,
        pages=pl.col("pages").explode().unique().sort(),
        evs=pl.col("pub_ev").append(pl.col("ev")),
        keys=pl.col("key").n_unique(),
    )
    return merged.with_columns(
        other_requests=pl.concat_list("pub_request").list.drop_nulls(),
        other_tenants=pl.when(distinct_tenants())
        .then(pl.concat_list("pub_tenant"))
        .otherwise(pl.lit([], pl.List(pl.String))),
    )
