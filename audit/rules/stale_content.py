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
    parts = [_left_over(context, rows, pairs), _altered(context, rows, pairs)]
    return report(context, ID, pl.concat(parts, how="diagonal_relaxed"))


def _left_over(context: Context, rows: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Fingerprints at read or receive that the page already had in its previous generation."""
    last = rows.sort("ev").group_by(*PAGE, "generation", "first", "layer", maintain_order=True).last()
    before = last.select(
        *PAGE,
        "first",
        "layer",
        "basis",
        generation=pl.col("generation") + 1,
        old_digest="digest",
        old_ev="ev",
        old_holder="holder",
        old_tenant="tenant",
    )
    now = rows.filter(pl.col("at").is_in(["receive", "read"]))
    place = [*PAGE, "generation", "first", "layer", "basis"]
    same = now.join(before, on=place).filter(pl.col("digest") == pl.col("old_digest"))
    same = lost_meanwhile(context, same.with_columns(request="holder", since="old_ev"))
    if pairs.height:
        # What was sent is what arrived: the new content merely equals the old.
        arrived = pairs.filter(pl.col("digest") == pl.col("sent_digest"))
        same = same.join(arrived, on=["ev", *PAGE, "first", "layer"], how="anti")
    # K and V of layer 0 follow from the token and its position alone: equal, they say nothing unless all layers are.
    telling = same.with_columns(whole=_whole()).filter(pl.col("whole") | (pl.col("layer") > 0))
    return _describe_left_over(telling.sort("ev", "page", "layer"))


def _whole() -> pl.Expr:
    """Whether all layers of a page, or of a stretch of it, are among the rows."""
    return pl.len().over("ev", *PAGE, "first") == pl.col("layers")


def _where() -> pl.Expr:
    """` in layers 1, 2`, from the column `apart`; nothing where that is empty."""
    names = pl.col("apart").cast(pl.List(pl.String)).list.join(", ")
    said = pl.format(" in {} {}", for_one(pl.col("apart").list.len(), "layer", "layers"), names)
    return pl.when(pl.col("apart").list.len() > 0).then(said).otherwise(pl.lit(""))


_APART = pl.col("layer").filter(~pl.col("whole")).unique().sort()
"""The layers of pages of which not all layers are concerned."""
_PAGES = {
    "pages": pl.col("page").unique(maintain_order=True),
    "gens": pl.col("generation").filter(pl.col("page").is_first_distinct()),
    "apart": _APART,
}


def _describe_left_over(same: pl.DataFrame) -> pl.DataFrame:
    """One row per holder, pool and former holder."""
    strangers = (pl.col("tenant") != pl.col("old_tenant")).fill_null(False)
    key = ["holder", "incarnation", "tenant", "pool", "old_holder", "old_tenant", "strangers", "lost"]
    found = (
        same.with_columns(strangers=strangers)
        .group_by(key, maintain_order=True)
        .agg(**_PAGES, at_ev=pl.col("ev").min(), evs=pl.col("old_ev").append(pl.col("ev")).unique(maintain_order=True))
    )
    count = pl.col("pages").list.len()
    former = pl.coalesce("old_holder", "old_tenant", pl.lit("an unknown holder"))
    return found.select(
        "tenant",
        "pool",
        "pages",
        "gens",
        "evs",
        "at_ev",
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
            "{} still had{} the bytes that {} had under {} one generation earlier",
            several_of(count, "page"),
            _where(),
            for_one(count, "it", "they"),
            former,
        ),
    )


_TRANSFER = ["transfer", "transfer_request", "incarnation", "tenant", "pool", "lost"]


def _altered(context: Context, rows: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Pages that arrived with other bytes than were sent, and that nobody else wrote in between."""
    if pairs.is_empty():
        return pl.DataFrame()
    differing = pairs.filter(pl.col("digest") != pl.col("sent_digest"))
    if differing.is_empty():
        return pl.DataFrame()
    kept = differing.join(_written_between(context, differing), on=["ev", *PAGE], how="anti")
    kept = lost_meanwhile(context, kept.with_columns(request="transfer_request", since="sent_ev"))
    kept = kept.with_columns(whole=_whole()).sort("ev", "page", "layer")
    grouped = kept.group_by(_TRANSFER, maintain_order=True)
    found = grouped.agg(**_PAGES, evs=pl.col("sent_ev").append(pl.col("ev")).unique(maintain_order=True))
    named = found.join(_sent_for_others(rows, kept), on=_TRANSFER, how="left", nulls_equal=True, maintain_order="left")
    theirs = pl.col("other_requests").list.len() > 0
    return named.select(
        "tenant",
        "pool",
        "pages",
        "gens",
        evs=pl.when(theirs).then(pl.concat_list("evs", "other_evs")).otherwise("evs"),
        request="transfer_request",
        incarnation="incarnation",
        verdict=pl.when(pl.col("lost").is_not_null())
        .then(pl.lit("unproven"))
        .when(theirs)
        .then(pl.lit("leak"))
        .otherwise(pl.lit("integrity")),
        missing="lost",
        other_requests=pl.col("other_requests").fill_null([]),
        other_tenants=pl.col("other_tenants").fill_null([]),
        why=pl.format(
            "{} of transfer {} arrived with other bytes{} than were sent{}",
            several_of(pl.col("pages").list.len(), "page"),
            "transfer",
            _where(),
            pl.when(theirs)
            .then(
                pl.format(
                    ", some with those that had been sent from pages of {}", pl.col("other_requests").list.join(", ")
                )
            )
            .otherwise(pl.lit("")),
        ),
    )


def _sent_for_others(rows: pl.DataFrame, altered: pl.DataFrame) -> pl.DataFrame:
    """Whose bytes they are that arrived instead, where these were sent before, for other tenants alone.

    Columns: those of `_TRANSFER`, other_requests, other_tenants, other_evs.
    """
    sent = rows.filter(pl.col("at") == "send").select(
        "digest", "layer", "basis", other_ev="ev", other_request="holder", other_tenant="tenant"
    )
    telling = altered.filter((pl.col("layer") > 0) | (pl.col("layers") == 1)).with_row_index("one")
    matches = telling.join(sent, on=["digest", "layer", "basis"]).filter(pl.col("other_ev") < pl.col("ev"))
    own = (pl.col("other_tenant") == pl.col("tenant")).fill_null(True).any().over("one")
    return (
        matches.filter(~own)
        .sort("other_ev")
        .unique("one", keep="first", maintain_order=True)
        .group_by(_TRANSFER, maintain_order=True)
        .agg(
            other_requests=pl.col("other_request").drop_nulls().unique(maintain_order=True),
            other_tenants=pl.col("other_tenant").unique(maintain_order=True),
            other_evs=pl.col("other_ev").unique(maintain_order=True),
        )
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
        "order all the same. Where each layer has a fingerprint of its own, the layers are named. It is a leak when "
        "the earlier generation belonged to another tenant, or when what arrived had been sent for another tenant."
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
