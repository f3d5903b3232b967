"""One cache key stood for two different things."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._frames import report, site_of
from kvwitness.audit.rules._shares import distinct_tenants, per_pair, publications, shares
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import several_of

ID = "cache-key-alias"


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Hold each share, and each publication under a key in use, against the publication it meets."""
    attached = _differing(_with_epochs(context, shares(context)))
    rows = per_pair(
        attached.filter(pl.col("differing") != ""),
        pl.col("differing").str.split(", ").list.explode().unique().sort().str.join(", "),
    )
    rows = rows.with_columns(
        verdict=pl.when(distinct_tenants()).then(pl.lit("leak")).otherwise(pl.lit("integrity")),
        why=pl.format(
            "attached under {} to pages that {} had published there for another {}",
            several_of("keys", "key"),
            pl.col("pub_request").fill_null("nobody known"),
            "differing",
        ),
    )
    return report(context, ID, pl.concat([rows, _republished(context)], how="diagonal_relaxed"))


def _with_epochs(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the weight epoch of the pool's engine at the publication and at the share."""
    changes = context.events.filter(pl.col("event") == "engine.epoch")
    epochs = changes.select(engine=site_of("engine"), at="ev", in_force="epoch").sort("at").collect()
    rows = rows.with_columns(engine=site_of("pool"))
    for moment, name in (("pub_ev", "epoch_then"), ("ev", "epoch_now")):
        rows = (
            rows.sort(moment)
            .join_asof(epochs, left_on=moment, right_on="at", by="engine", check_sortedness=False)
            .rename({"in_force": name})
            .drop("at", strict=False)
        )
    return rows


def _differing(rows: pl.DataFrame) -> pl.DataFrame:
    """Name in `differing` what the share and its publication do not have in common under their key."""
    stated = pl.col("ns_known") & pl.col("pub_ns").is_not_null()
    same_wish = (pl.col("share_adapter") == pl.col("asked_adapter")).fill_null(False) & ~pl.col("ns_known")
    in_names = pl.col("share_epoch").is_not_null() & pl.col("pub_epoch").is_not_null()
    reloaded = pl.col("epoch_now").is_not_null() & pl.col("epoch_now").ne_missing(pl.col("epoch_then"))
    differs = {
        "digest": pl.col("digest") != pl.col("pub_digest"),
        "adapter": pl.col("share_adapter").ne_missing(pl.col("pub_adapter")) & ~same_wish,
        "media": stated & pl.col("share_media").ne_missing(pl.col("pub_media")),
        "model": pl.col("share_model") != pl.col("pub_model"),
        "epoch": pl.when(in_names).then(pl.col("share_epoch") != pl.col("pub_epoch")).otherwise(reloaded),
    }
    named = [pl.when(differ).then(pl.lit(name)) for name, differ in differs.items()]
    return rows.with_columns(differing=pl.concat_str(named, separator=", ", ignore_nulls=True))


def _republished(context: Context) -> pl.DataFrame:
    """Publications of another tenant's other content under a key that was still in use. Nobody has read it
    yet."""
    published = publications(context)
    withdrawn = context.events.filter(pl.col("event") == "page.unpublish").select(
        "pool", "key", pub_ev="ev", withdrawn=pl.lit(1)
    )
    run = pl.concat([published, withdrawn.collect()], how="diagonal_relaxed").sort("pub_ev")
    run = run.with_columns(life=pl.col("withdrawn").fill_null(0).cum_sum().over("pool", "key"))
    run = run.filter(pl.col("withdrawn").is_null())
    names = ["pub_ev", "pub_digest", "pub_tenant", "pub_request"]
    before = [pl.col(name).shift().over("pool", "key", "life").alias(f"old_{name}") for name in names]
    clash = run.with_columns(*before).filter(
        (pl.col("pub_digest") != pl.col("old_pub_digest")) & distinct_tenants("pub_tenant", "old_pub_tenant")
    )
    return clash.select(
        pl.col("pub_request").alias(KEY[0]),
        pl.col("pub_incarnation").alias(KEY[1]),
        "pool",
        tenant="pub_tenant",
        pages="pub_pages",
        verdict=pl.lit("exposure"),
        other_requests=pl.concat_list("old_pub_request").list.drop_nulls(),
        other_tenants=pl.concat_list("old_pub_tenant"),
        evs=pl.concat_list("old_pub_ev", "pub_ev"),
        why=pl.format(
            "published another digest under a key that {} of {} had published and that was in use",
            pl.col("old_pub_request").fill_null("somebody"),
            "old_pub_tenant",
        ),
    )


RULE = Rule(
    id=ID,
    title="One cache key, two contents",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY, Verdict.EXPOSURE),
    severity="critical",
    meaning=(
        "A request attached to cached pages by a key under which something else had been published: "
        "another digest of the inputs, another adapter, media item or model, or weights of another epoch. "
        "By key and namespace the hit looks valid, so every later check passes and the request continues "
        "another prompt. Salts are not compared here: equal content across salts is `salt-crossing`. A "
        "publication that only clashes with one in use, and that nobody attached to, is an exposure."
    ),
    needs=(),
    false_positives=(
        "Digests that do not depend on the inputs alone, such as one with a timestamp; an engine that "
        "states a namespace on one side only."
    ),
    references=("vllm-project/vllm#12621", "vllm-project/vllm#44701"),
    atlas=("AML.T0057",),
    cwe=("CWE-328", "CWE-706", "CWE-524"),
    query=query,
    positive=Example(
        title="the digest of what was asked for is not the digest of what was published",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a"}
{"t":1,"seq":2,"source":"gateway","event":"request.received","request":"r2","tenant":"t-b"}
{"t":2,"seq":1,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[1],"key":"k","ns":{},\
"digest":"d1","request":"r1"}
{"t":3,"seq":2,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[1],"key":"k","digest":"d2",\
"request":"r2"}
""",
    ),
    negative=Example(
        title="another salt, the same content",
        trace="""\
{"t":1,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a","salt_hmac":"s1"}
{"t":1,"seq":2,"source":"gateway","event":"request.received","request":"r2","tenant":"t-b","salt_hmac":"s2"}
{"t":2,"seq":1,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[1],"key":"k",\
"ns":{"salt_hmac":"s1"},"digest":"d1","request":"r1"}
{"t":3,"seq":2,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[1],"key":"k","digest":"d1",\
"request":"r2"}
""",
    ),
)
