"""The bytes on a page are not the bytes that should be there."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._digests import PAGE, digests, sent_and_received
from kvwitness.audit.rules._frames import report
from kvwitness.audit.rules._losses import lost_meanwhile
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import for_one, several_of

ID = "stale-content"


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Compare fingerprints across generations of a page, and across the two ends of a transfer."""
    rows = digests(context)
    pairs = sent_and_received(context, rows)
    parts = [_left_over(context, rows, pairs), _altered(context, pairs)]
    return report(context, ID, pl.concat(parts, how="diagonal_relaxed"))


def _left_over(context: Context, rows: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Fingerprints at read or receive that the page already had in its previous generation."""
    last = rows.sort("ev").group_by(*PAGE, "generation", maintain_order=True).last()
    before = last.select(
        *PAGE,
        generation=pl.col("generation") + 1,
        old_digest="digest",
        old_ev="ev",
        old_holder="holder",
        old_tenant="tenant",
    )
    now = rows.filter(pl.col("at").is_in(["receive", "read"]))
    same = now.join(before, on=[*PAGE, "generation"]).filter(pl.col("digest") == pl.col("old_digest"))
    same = lost_meanwhile(context, same.with_columns(request="holder", since="old_ev"))
    if pairs.height:
        # What was sent is what arrived: the new content merely equals the old.
        arrived = pairs.filter(pl.col("digest") == pl.col("sent_digest"))
        same = same.join(arrived, on=["ev", *PAGE], how="anti")
    return _describe_left_over(same.sort("ev", "page"))


def _describe_left_over(same: pl.DataFrame) -> pl.DataFrame:
    """One row per holder, pool and former holder."""
    strangers = (pl.col("tenant") != pl.col("old_tenant")).fill_null(False)
    key = ["holder", "incarnation", "tenant", "pool", "old_holder", "old_tenant", "strangers", "lost"]
    found = (
        same.with_columns(strangers=strangers)
        .group_by(key, maintain_order=True)
        .agg(
            pages=pl.col("page").unique(maintain_order=True),
            gens=pl.col("generation").filter(pl.col("page").is_first_distinct()),
            evs=pl.col("old_ev").append(pl.col("ev")),
        )
    )
    count = pl.col("pages").list.len()
    former = pl.coalesce("old_holder", "old_tenant", pl.lit("an unknown holder"))
    return found.select(
        "tenant",
        "pool",
        "pages",
        "gens",
        "evs",
        request="holder",
        incarnation="incarnation",
        verdict=pl.when(pl.col("lost").is_not_null())
        .then(pl.lit("unproven"))
        .when("strangers")
        .then(pl.lit("leak"))
        .otherwise(pl.lit("integrity")),
        missing="lost",
        other_requests=pl.concat_list("old_holder").list.drop_nulls(),
        other_tenants=pl.when("strangers").then(pl.concat_list("old_tenant")).otherwise(pl.lit([], pl.List(pl.String))),
        why=pl.format(
            "{} still had the bytes that {} had under {} one generation earlier",
            several_of(count, "page"),
            for_one(count, "it", "they"),
            former,
        ),
    )


def _altered(context: Context, pairs: pl.DataFrame) -> pl.DataFrame:
    """Pages that arrived with other bytes than were sent, and that nobody else wrote in between."""
    if pairs.is_empty():
        return pl.DataFrame()
    differing = pairs.filter(pl.col("digest") != pl.col("sent_digest"))
    if differing.is_empty():
        return pl.DataFrame()
    kept = differing.join(_written_between(context, differing), on=["ev", *PAGE], how="anti")
    kept = lost_meanwhile(context, kept.with_columns(request="transfer_request", since="sent_ev"))
    grouped = kept.sort("ev", "page").group_by(
        "transfer", "transfer_request", "incarnation", "tenant", "pool", "lost", maintain_order=True
    )
    found = grouped.agg(
        pages=pl.col("page").unique(maintain_order=True),
        gens=pl.col("generation").filter(pl.col("page").is_first_distinct()),
        evs=pl.col("sent_ev").append(pl.col("ev")),
    )
    return found.select(
        "tenant",
        "pool",
        "pages",
        "gens",
        "evs",
        request="transfer_request",
        incarnation="incarnation",
        verdict=pl.when(pl.col("lost").is_null()).then(pl.lit("integrity")).otherwise(pl.lit("unproven")),
        missing="lost",
        why=pl.format(
            "{} of transfer {} arrived with other bytes than were sent",
            several_of(pl.col("pages").list.len(), "page"),
            "transfer",
        ),
    )


def _written_between(context: Context, differing: pl.DataFrame) -> pl.DataFrame:
    """Those of the given pairs whose source or destination page was written between the two fingerprints.

    The transfer's own landing on the destination is not counted.
    """
    pools = pl.concat([differing["pool"], differing["src_pool"]]).unique().to_list()
    writes = context.page_events.filter(
        (pl.col("event") == "page.write")
        & pl.col("pool").is_in(pools)
        & pl.col("ev").is_between(differing["sent_ev"].min(), differing["ev"].max())
    )
    landed = writes.select("pool", "request", "op", write_ev="ev", page="pages").explode("page")
    targets = pl.concat([differing.select(PAGE), differing.select(pool="src_pool", page="src_page")]).unique()
    touched = landed.join(targets.lazy(), on=PAGE, how="semi").collect()
    between = pl.col("write_ev").is_between("sent_ev", "ev")
    own = pl.col("op").is_in(["transfer", "load"]) & (pl.col("request") == pl.col("transfer_request"))
    at_target = differing.join(touched, on=PAGE).filter(between & ~own.fill_null(False))
    source = touched.rename({"pool": "src_pool", "page": "src_page"})
    at_source = differing.join(source, on=["src_pool", "src_page"]).filter(between)
    return pl.concat([at_target.select("ev", *PAGE), at_source.select("ev", *PAGE)]).unique()


RULE = Rule(
    id=ID,
    title="A page carries other bytes than it should",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="critical",
    meaning=(
        "Device-side fingerprints show that a page, read or received in a new generation, still has "
        "exactly the bytes of its previous generation, although its load or write was reported complete; "
        "or that the bytes that arrived are not those that were sent. The ownership record can be in "
        "order all the same. It is a leak when the earlier generation belonged to another tenant."
    ),
    needs=(),
    false_positives=(
        "A recycled page that was rightly filled with the very same content (one prompt sent twice); both "
        "generations empty."
    ),
    references=("LMCache/LMCache#4385", "sgl-project/sglang#39729"),
    atlas=("AML.T0057",),
    cwe=("CWE-226", "CWE-354"),
    query=query,
    positive=Example(
        title="a load is complete, the bytes are the previous tenant's",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1,"seq":1,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4],"request":"r1","tenant":"t-a"}
{"t":2,"seq":2,"source":"e/0","event":"content.digest","pool":"e/0/kv","pages":[4],"digests":["b:1"],\
"at":"free"}
{"t":3,"seq":3,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[4],"request":"r1"}
{"t":4,"seq":4,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4],"request":"r2","tenant":"t-b"}
{"t":5,"seq":5,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[4],"request":"r2","op":"load"}
{"t":6,"seq":6,"source":"e/0","event":"content.digest","pool":"e/0/kv","pages":[4],"digests":["b:1"],\
"at":"receive"}
""",
    ),
    negative=Example(
        title="the digest changes because the page was written in between",
        trace="""\
{"t":1,"seq":1,"source":"p/0","event":"transfer.begin","transfer":"x","request":"r1","src_pool":"p/0/kv",\
"src_pages":[4],"dst_pool":"d/0/kv","dst_pages":[7],"tokens":4}
{"t":2,"seq":2,"source":"p/0","event":"content.digest","pool":"p/0/kv","pages":[4],"digests":["b:1"],\
"at":"send"}
{"t":3,"seq":1,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[7],"request":"r1","op":"transfer"}
{"t":4,"seq":2,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[7],"request":"r1","op":"forward"}
{"t":5,"seq":3,"source":"d/0","event":"content.digest","pool":"d/0/kv","pages":[7],"digests":["b:2"],\
"at":"read"}
""",
    ),
)
