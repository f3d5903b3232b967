"""A share crossed a boundary that the salts or the pool's policy draw."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._frames import report
from kvwitness.audit.rules._shares import distinct_tenants, per_pair, shares
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "salt-crossing"


def _with_policy(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the sharing policy and the kind of the pool as they were declared when the share was made."""
    declared = context.events.filter(pl.col("event") == "engine.pool").select(
        "pool", at="ev", sharing="sharing", kind="kind"
    )
    filled = declared.sort("at").with_columns(pl.col("sharing", "kind").forward_fill().over("pool"))
    return rows.sort("ev").join_asof(filled.collect(), left_on="ev", right_on="at", by="pool", check_sortedness=False)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find shares whose two sides differ in salt, or in tenant where the pool isolates tenants."""
    rows = _with_policy(context, shares(context))
    same_wish = (pl.col("share_salt_hmac") == pl.col("asked_salt")).fill_null(False) & ~pl.col("ns_known")
    salted = pl.col("share_salt_hmac").ne_missing(pl.col("pub_salt_hmac")) & ~same_wish
    forbidden = pl.col("sharing").is_in(["none", "tenant"]).fill_null(False) & distinct_tenants()
    equal = (pl.col("digest") == pl.col("pub_digest")).fill_null(False)
    unequal = (pl.col("digest") != pl.col("pub_digest")).fill_null(False)
    # One media item encoded once is meant to serve everybody who sends it.
    encoder = (pl.col("kind") == "encoder").fill_null(False) & equal
    crossing = rows.filter((salted | forbidden) & ~encoder).with_columns(
        boundary=pl.when(salted & forbidden)
        .then(pl.lit("salt and the pool's policy"))
        .when(salted)
        .then(pl.lit("salt"))
        .otherwise(pl.lit("the pool's policy")),
        equal=equal,
        unequal=unequal,
    )
    gathered = per_pair(crossing, pl.col("boundary").first(), pl.col("equal").all(), pl.col("unequal").any())
    return report(context, ID, _describe(gathered))


def _describe(rows: pl.DataFrame) -> pl.DataFrame:
    leak = pl.col("unequal") & distinct_tenants()
    content = (
        pl.when(pl.col("unequal"))
        .then(pl.lit("the digests of the two sides differ"))
        .when(pl.col("equal"))
        .then(pl.lit("the digests of the two sides are equal"))
        .otherwise(pl.lit("without digests, so that equality of content was not shown"))
    )
    return rows.with_columns(
        verdict=pl.when(leak).then(pl.lit("leak")).otherwise(pl.lit("exposure")),
        why=pl.format(
            "attached to pages of {} across {}: {}",
            pl.coalesce("pub_request", "pub_tenant", pl.lit("an unknown publisher")),
            "boundary",
            content,
        ),
    )


RULE = Rule(
    id=ID,
    title="A cache hit across isolated namespaces",
    verdicts=(Verdict.LEAK, Verdict.EXPOSURE),
    severity="medium",
    meaning=(
        "A request attached to pages that were published under another salt, or by another tenant in a "
        "pool whose policy keeps tenants apart. With equal digests both sent the same input and nothing "
        "is disclosed but that somebody had sent it before; the time saved can be measured by the client. "
        "With digests that differ, another tenant's content was readable."
    ),
    needs=(),
    false_positives=(
        "A tenant that changes its salt on purpose and whose engine keeps serving its old entries; a pool "
        "whose declared policy is stricter than what the operator wants."
    ),
    references=("sgl-project/sglang#37160", "LMCache/LMCache#2880", "vllm-project/vllm#17045"),
    atlas=("AML.T0024",),
    cwe=("CWE-208", "CWE-653", "CWE-524"),
    query=query,
    positive=Example(
        title="two salts, one entry, the same document",
        request="r2",
        verdict="exposure",
        trace="""\
{"t":1,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a","salt_hmac":"s1"}
{"t":1,"seq":2,"source":"gateway","event":"request.received","request":"r2","tenant":"t-b","salt_hmac":"s2"}
{"t":2,"seq":1,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[1],"key":"k",\
"ns":{"salt_hmac":"s1"},"digest":"d1","request":"r1"}
{"t":3,"seq":2,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[1],"key":"k","digest":"d1",\
"request":"r2"}
""",
    ),
    negative=Example(
        title="a common prefix without salts in a pool that everybody shares",
        trace="""\
{"t":0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":16,"pages_total":9,\
"sharing":"global"}
{"t":1,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a"}
{"t":1,"seq":2,"source":"gateway","event":"request.received","request":"r2","tenant":"t-b"}
{"t":2,"seq":2,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[1],"key":"k","ns":{},\
"digest":"d1","request":"r1"}
{"t":3,"seq":3,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[1],"key":"k","digest":"d1",\
"request":"r2"}
""",
    ),
)
