"""A check of the engine's own says that bytes are wrong, and nothing else on record can tell."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._baseline import Settings
from kvwitness.audit.rules._frames import report, with_tenant
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import several_of

ID = "engine-check-failed"


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Repeat what checks said: of requests where they named one, else of the engine."""
    said = context.events.filter((pl.col("event") == "shadow.finding") & pl.col("path").is_not_null()).sort("ev")
    told = (pl.col("reason").first(), pl.len().alias("n"))
    named = keyed(said).group_by(KEY, maintain_order=True).agg(*told, evs=pl.col("ev").head(20)).collect()
    nameless = said.filter(pl.col("request").is_null()).group_by("site", "path", maintain_order=True)
    engines = nameless.agg(*told, evs=pl.col("ev").head(20)).rename({"site": "engine"}).collect()
    rows = pl.concat([with_tenant(named, context), engines], how="diagonal_relaxed").with_columns(
        verdict=pl.lit("unproven"),
        missing=pl.lit("fingerprints of the pages concerned"),
        why=pl.format("{} ({})", "reason", several_of("n", "report")),
    )
    return report(context, ID, rows)


RULE = Rule(
    id=ID,
    title="A check of the engine's own failed",
    verdicts=(Verdict.UNPROVEN,),
    severity="high",
    meaning=(
        "The engine's own check of its pages, such as SGLang's KV canary or its checksum between prefill and decode, "
        "reported that bytes are not those that were written or sent. It says so of a request or of a slot, and not "
        "whose content was there, so that nothing is proven; but a request of which that was said is not clean. Where "
        "the tracer took fingerprints, stale-content judges the bytes."
    ),
    needs=(),
    false_positives=(
        "A checksum that follows the wrong rows, or a canary that a kernel without it has overwritten: both have "
        "happened. A request that the engine has dropped for it has not been answered from those bytes."
    ),
    references=("sgl-project/sglang#39500", "sgl-project/sglang#39729", "sgl-project/sglang#26806"),
    atlas=(),
    cwe=("CWE-354",),
    query=query,
    positive=Example(
        title="decode's checksum of a request differs from that of prefill",
        request="r1",
        verdict="unproven",
        trace="""\
{"t":1,"seq":1,"source":"d/0","event":"request.received","request":"r1","tenant":"t-a"}
{"t":2,"seq":2,"source":"d/0","event":"shadow.finding","request":"r1","transfer":"x","path":"kv_checksum",\
"reason":"what arrived is not what prefill sent"}
""",
    ),
    negative=Example(
        title="the live shadow has warned: the audit judges for itself",
        trace="""\
{"t":1,"seq":1,"source":"d/0","event":"request.received","request":"r1","tenant":"t-a"}
{"t":2,"seq":2,"source":"d/0","event":"shadow.finding","request":"r1","reason":"unwritten"}
""",
    ),
)
