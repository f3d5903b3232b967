"""Findings grouped by whom they befell, and a verdict for every request.

An incident is what one request (or one engine or tenant, for findings that belong to no request) suffered: it carries
the strongest verdict of its findings, both sides, and what proves it. Its id depends on nothing but whom it befell, so
it stays the same when the audit runs again or more data arrives.
"""

from __future__ import annotations

import hashlib

import polars as pl

from kvwitness.audit.pagesets import union_pages
from kvwitness.audit.provenance.actors import OWN_TRAFFIC
from kvwitness.audit.relations import KEY
from kvwitness.audit.rules.model import STRENGTH, Context

SERVED = ["page.alloc", "page.share", "page.write", "page.read", "page.copy"]
"""Events that show pages of a request."""


def _strength() -> pl.Expr:
    return pl.col("verdict").replace_strict({str(v): n for v, n in STRENGTH.items()}, return_dtype=pl.Int64)


def incident_id(kind: str, *names: object) -> str:
    """A short id that depends on what is named and on nothing else."""
    text = "\x1f".join([kind, *(str(n) for n in names)])
    return "inc-" + hashlib.sha256(text.encode()).hexdigest()[:12]


def group(findings: pl.DataFrame, context: Context) -> pl.DataFrame:
    """One row per incident, strongest first.

    Columns: incident, verdict, severity order by verdict, request, incarnation, tenant, engine, rules (list, those
    of the strongest verdict first), other_requests, other_tenants, pools (list of struct pool, pages, gens: the pages
    of the findings that carry the incident's verdict), first_ns and last_ns (of those
    findings), findings (how many), evs.
    """
    if findings.is_empty():
        return _empty()
    rows = findings.with_columns(strength=_strength()).with_columns(
        subject=pl.when(pl.col("request").is_null()).then(
            pl.concat_str(
                pl.col("rule"), pl.col("engine").fill_null(""), pl.col("tenant").fill_null(""), separator="\x1f"
            )
        )
    )
    key = ["request", "incarnation", "subject"]
    top = rows.with_columns(top=pl.col("strength").max().over(key))
    strong = top.filter(pl.col("strength") == pl.col("top"))
    heads = top.group_by(key, maintain_order=True).agg(
        pl.col("verdict").sort_by("strength", descending=True).first(),
        pl.col("tenant").drop_nulls().first(),
        pl.col("engine").drop_nulls().first(),
        rules=pl.col("rule").sort_by("strength", descending=True, maintain_order=True).unique(maintain_order=True),
        other_requests=pl.col("other_requests").explode().drop_nulls().unique().sort(),
        other_tenants=pl.col("other_tenants").explode().drop_nulls().unique().sort(),
        first_ns=pl.col("time_ns").filter(pl.col("strength") == pl.col("top")).min(),
        last_ns=pl.col("time_ns").filter(pl.col("strength") == pl.col("top")).max(),
        findings=pl.len().cast(pl.Int64),
        evs=pl.col("evs").explode().drop_nulls().unique().sort(),
    )
    merged = heads.join(_pools(strong, key), on=key, how="left", nulls_equal=True, maintain_order="left")
    ids = [
        incident_id("request", row[0], row[1]) if row[0] is not None else incident_id("engine", row[2])
        for row in merged.select(key).iter_rows()
    ]
    return (
        merged.with_columns(pl.Series("incident", ids, dtype=pl.String), rank=_strength())
        .sort(["rank", "first_ns"], descending=[True, False], maintain_order=True)
        .select(list(_empty().columns))
    )


def _pools(strong: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """The pages of the findings that carry the strongest verdict, per pool."""
    with_pages = strong.filter(pl.col("pages").list.len() > 0)
    owners = with_pages.select(*key, "pool").unique(maintain_order=True).with_row_index("group")
    owners = owners.with_columns(pl.col("group").cast(pl.Int64))
    rows = with_pages.join(owners, on=[*key, "pool"], how="left", nulls_equal=True, maintain_order="left")
    per_pool = owners.join(union_pages(rows["group"], rows["pages"], rows["gens"]), on="group", maintain_order="left")
    return per_pool.sort("pool").group_by(key).agg(pools=pl.struct("pool", "pages", "gens"))


def _empty() -> pl.DataFrame:
    pool = pl.Struct({"pool": pl.String, "pages": pl.List(pl.UInt32), "gens": pl.List(pl.Int64)})
    return pl.DataFrame(
        schema={
            "incident": pl.String,
            "verdict": pl.String,
            "request": pl.String,
            "incarnation": pl.Int32,
            "tenant": pl.String,
            "engine": pl.String,
            "rules": pl.List(pl.String),
            "other_requests": pl.List(pl.String),
            "other_tenants": pl.List(pl.String),
            "pools": pl.List(pool),
            "first_ns": pl.Int64,
            "last_ns": pl.Int64,
            "findings": pl.Int64,
            "evs": pl.List(pl.Int64),
        }
    )


def request_verdicts(findings: pl.DataFrame, context: Context, page_events: int) -> pl.DataFrame:
    """request, incarnation, tenant, verdict, missing: one row for every request on record.

    The strongest finding decides. Without one, a request that was served with nothing on record of its pages is
    `unproven`; one that read another tenant's pages by the sharing policy is `shared`; any other is `clean`.
    """
    worst = (
        findings.filter(pl.col("request").is_not_null())
        .with_columns(strength=_strength())
        .sort("strength", descending=True, maintain_order=True)
        .group_by(KEY, maintain_order=True)
        .agg(pl.col("verdict").first(), pl.col("missing").first())
    )
    shared = context.facts.filter(pl.col("fact") == "shared").select(KEY).unique().with_columns(shared=pl.lit(True))
    seen = (
        context.acts.filter(pl.col("event").is_in(SERVED) & pl.col("request").is_not_null())
        .select(KEY)
        .unique()
        .with_columns(seen=pl.lit(True))
        .collect()
    )
    blind = pl.col("ok").fill_null(False) & pl.col("seen").is_null() & ~pl.col("traffic").is_in(list(OWN_TRAFFIC))
    what = "page events" if page_events == 0 else "page events of this request"
    return (
        context.requests.select(*KEY, "tenant", "ok", "traffic")
        .join(worst, on=KEY, how="left", maintain_order="left")
        .join(shared, on=KEY, how="left", maintain_order="left")
        .join(seen, on=KEY, how="left", maintain_order="left")
        .select(
            *KEY,
            "tenant",
            verdict=pl.when(pl.col("verdict").is_not_null())
            .then("verdict")
            .when(blind)
            .then(pl.lit("unproven"))
            .when(pl.col("shared").is_not_null())
            .then(pl.lit("shared"))
            .otherwise(pl.lit("clean")),
            missing=pl.when(pl.col("verdict").is_null() & blind).then(pl.lit(what)).otherwise("missing"),
        )
    )
