"""A sound-looking read met what another request had computed from content that it should never have read."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._extent import EXTENT, counted
from kvwitness.audit.rules._pages import facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "tainted-content"

HOPS = 64
"""Requests that are followed back at most; each round of the search is one of them."""

UNSOUND = ["unwritten", "foreign", "not_ready", "late_read", "open_read_hit"]

_CHAIN = pl.format("read {} whose content derives from an unsound read of {}", EXTENT, "other_names")
_WHY = (
    pl.when(pl.col("other_tenants").list.len() > 0)
    .then(pl.format("{}, which met content of {}", _CHAIN, "tenant_names"))
    .otherwise(_CHAIN)
)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find reads of tainted content and follow it back to the reads that tainted it."""
    rows = counted(facts(context, ["tainted"])).with_row_index("_read")
    if rows.is_empty():
        return judge(context, ID, rows.drop("_read"), None, _WHY)
    chains = _chains(rows)
    doubts, tenants = _of_chains(chains, _origins(context))
    told = rows.drop("other_request", "other_tenant").join(doubts, on="_read", how="left", maintain_order="left")
    origins = told.join(tenants, on="_read", how="left", maintain_order="left")
    leaks = origins.group_by("_read").agg(
        leak=(pl.col("other_tenant") != pl.col("tenant")).any()  # unknown on either side: no leak is shown
    )
    requests = told.join(chains.select("_read", other_request="who"), on="_read", maintain_order="left")
    requests = requests.filter((pl.col("other_request") != pl.col("request")).fill_null(True))
    # One row for each name of the chain and of its tenants; only the first keeps the positions.
    named = pl.concat([origins, requests], how="diagonal").join(leaks, on="_read", maintain_order="left")
    again = pl.int_range(pl.len()).over("_read") > 0
    ready = named.with_columns(
        positions=pl.when(again).then(0).otherwise("positions"),
        verdict=pl.when("leak").then(pl.lit("leak")).otherwise(pl.lit("integrity")),
    )
    return _judged(context, ready)


def _judged(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Judge the rows; those with no origin that is proved stay unproven and name what that one lacks."""
    sure = rows.filter(pl.col("doubt").is_null())
    unsure = rows.filter(pl.col("doubt").is_not_null())
    found = judge(context, ID, unsure, None, _WHY)
    doubts = unsure.group_by(KEY).agg(pl.col("doubt").sort().first())
    unproven = found.join(doubts, on=KEY, how="left", maintain_order="left").with_columns(
        why=pl.when(pl.col("missing").is_null()).then(pl.format("{}; not proved: {}", "why", "doubt")).otherwise("why"),
        missing=pl.coalesce("missing", "doubt"),
        verdict=pl.lit("unproven"),
    )
    return pl.concat([judge(context, ID, sure, None, _WHY), unproven.select(found.columns)])


def _origins(context: Context) -> pl.DataFrame:
    """Unsound reads: by whom (`who`), when (`ev`), whose content they met, and what their proof lacks."""
    harmless = (pl.col("fact") == "late_read") & (pl.col("x") != 2)
    rows = facts(context, UNSOUND).filter(~harmless & pl.col("request").is_not_null())
    judged = judge(context, ID, rows, pl.lit("integrity"), pl.lit(""))
    proved = judged.filter(pl.col("missing").is_null()).select("request").unique()
    doubts = judged.join(proved, on="request", how="anti")
    doubt = doubts.group_by("request").agg(doubt=pl.col("missing").sort().first())
    return rows.join(doubt, on="request", how="left").select("ev", "doubt", "other_tenant", who="request")


def _chains(rows: pl.DataFrame) -> pl.DataFrame:
    """Per row, each request (`who`) on the way back to the origin, and the event before which it counts."""
    written = pl.col("ev2").fill_null(2**62)
    steps = rows.select("_read", who="other_request", before=written).drop_nulls("who")
    back = rows.select("ev", next_before=written, who="request", source="other_request").drop_nulls("source")
    known = steps
    for _ in range(HOPS):
        reached = steps.join(back, on="who").filter(pl.col("ev") < pl.col("before"))
        steps = reached.select("_read", who="source", before="next_before")
        steps = steps.group_by("_read", "who").agg(pl.col("before").max())
        steps = steps.join(known, on=["_read", "who"], how="anti")
        if steps.is_empty():
            break
        known = pl.concat([known, steps])
    return known


def _of_chains(chains: pl.DataFrame, origins: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Per row, what is missing where no origin is proved (`doubt`), and the tenants of the origins."""
    met = chains.join(origins, on="who").filter(pl.col("ev") < pl.col("before"))
    sure = met.filter(pl.col("doubt").is_null())
    unsure = met.join(sure.select("_read").unique(), on="_read", how="anti")
    doubt = unsure.group_by("_read").agg(pl.col("doubt").sort().first())
    return doubt, pl.concat([sure, unsure]).select("_read", "other_tenant").drop_nulls().unique()


RULE = Rule(
    id=ID,
    title="Content computed from an unsound read was served on",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="high",
    meaning=(
        "A request read what it should not have, went on computing, and what it computed was published, "
        "copied or moved to another request. That request's own reads look sound in every respect, yet "
        "their content derives from the first fault. The finding names the requests back to the origin. It "
        "is a leak when the content met at the origin belongs to another tenant than the reader."
    ),
    needs=("page.write", "page.read"),
    false_positives=(
        "A request that threw away what it had computed after the unsound read and recorded the new "
        "writes under the same positions only later; an origin that is itself a false positive."
    ),
    references=("vllm-project/vllm#47021",),
    atlas=("AML.T0057", "AML.T0031"),
    cwe=("CWE-349", "CWE-668"),
    query=query,
    positive=Example(
        title="a continuation of a stranger's content is published and shared",
        request="r3",
        verdict="leak",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3,4],"request":"r2",\
"tenant":"t-b"}
{"t":2.4,"seq":6,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"prefill","tok":[0,4]}
{"t":2.5,"seq":7,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[4],"request":"r2",\
"op":"forward","tok":[4,8]}
{"t":2.6,"seq":8,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[4],"key":"k1","ns":{},\
"digest":"d1","request":"r2"}
{"t":2.7,"seq":9,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[4],"key":"k1","ns":{},\
"digest":"d1","request":"r3","tenant":"t-b","tok":[4,8]}
{"t":2.8,"seq":10,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[4],"request":"r3",\
"op":"decode","tok":[4,8]}
""",
    ),
    negative=Example(
        title="only what was computed before the unsound read is shared",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4,3],"request":"r2",\
"tenant":"t-b"}
{"t":2.4,"seq":6,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[4],"request":"r2",\
"op":"forward","tok":[0,4]}
{"t":2.5,"seq":7,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[4,3],"request":"r2",\
"op":"decode","tok":[0,8]}
{"t":2.6,"seq":8,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[4],"key":"k1","ns":{},\
"digest":"d1","request":"r2"}
{"t":2.7,"seq":9,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[4],"key":"k1","ns":{},\
"digest":"d1","request":"r3","tenant":"t-b","tok":[0,4]}
{"t":2.8,"seq":10,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[4],"request":"r3",\
"op":"decode","tok":[0,4]}
""",
    ),
)
