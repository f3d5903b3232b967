"""Pages that nobody alive holds any more, and transfers that never end."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._extent import PAGES, WERE
from kvwitness.audit.rules._frames import SECOND_NS, report
from kvwitness.audit.rules._pages import facts, judge
from kvwitness.audit.rules._transfers import unterminated_transfers
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict
from kvwitness.audit.wording import number_of

ID = "orphaned-pages"


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find pages still held long after their request ended, and transfers with no end on record."""
    held = _aged(context, facts(context, ["orphan"])).filter(pl.col("x") > float(settings["bound_s"]))
    why = pl.format("{} {} still held {} s after the request had ended", PAGES, WERE, number_of("x"))
    hanging = unterminated_transfers(context, settings)
    return pl.concat([judge(context, ID, held, pl.lit("exposure"), why), report(context, ID, hanging)])


def _aged(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Name the end of the request as the other event, and put the seconds from then on until the release, or
    until the end of the record, into `x`."""
    if rows.is_empty():
        return rows
    ended = context.requests.select(*KEY, "ended_ev", "ended_ns")
    seen = context.events.select("ev", "ref_ns").join(rows.lazy().select("ev").unique(), on="ev", how="semi")
    dated = rows.join(ended, on=KEY, how="left", maintain_order="left").join(
        seen.collect(), on="ev", how="left", maintain_order="left"
    )
    until = pl.when(pl.col("x") == 1).then(context.horizon_ns).otherwise("ref_ns")
    aged = dated.with_columns(x=(until - pl.col("ended_ns")) // SECOND_NS, ev2=pl.col("ended_ev"))
    return aged.drop("ended_ev", "ended_ns", "ref_ns")


RULE = Rule(
    id=ID,
    title="Pages are held by nobody alive, or a transfer never ends",
    verdicts=(Verdict.EXPOSURE,),
    severity="medium",
    meaning=(
        "A request was answered, aborted or refused long ago and its pages are still its own: no cache, "
        "session or snapshot took them over, and nobody released them. Or a transfer began and no party "
        "ever reported it done, failed or drained. Nothing is shown to anybody, but the memory is lost to "
        "others, and whoever cleans it up later without looking may do so while it is in use again. The "
        "time counts from the first of answer, abort and refusal."
    ),
    needs=("page.alloc", "page.free"),
    false_positives=(
        "Releases that are not recorded; an engine that keeps pages for a follow-up turn without saying "
        "so; a record that ends right after the bound."
    ),
    references=(
        "sgl-project/sglang#30325",
        "sgl-project/sglang#36926",
        "sgl-project/sglang#36988",
        "sgl-project/sglang#38935",
        "vllm-project/vllm#46283",
        "NVIDIA/TensorRT-LLM#15018",
        "ai-dynamo/dynamo#7489",
    ),
    atlas=("AML.T0029",),
    cwe=("CWE-401", "CWE-772"),
    query=query,
    params=(
        Param(
            "bound_s",
            600,
            "how long after the end of the request its pages may be held, or its transfer go without an end; "
            "for pages, anything below 600 counts as 600",
            "s",
        ),
    ),
    positive=Example(
        title="an abort leaves the page behind",
        request="r1",
        verdict="exposure",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":3.0,"seq":3,"source":"e/0","event":"request.aborted","request":"r1","by":"client"}
{"t":900.0,"seq":4,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4],"request":"r2","tenant":"t-b"}
""",
    ),
    negative=Example(
        title="the reuse index keeps the page",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":3.0,"seq":3,"source":"e/0","event":"request.finished","request":"r1","status":200}
{"t":3.1,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish","to":"cache"}
{"t":900.0,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4],"request":"r2","tenant":"t-b"}
""",
    ),
)
