"""A read came before the write that was to fill the pages."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import ALL_WERE, EXTENT, counted
from kvwitness.audit.rules._pages import BY_TENANT, facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "read-before-ready"

_THERE = (
    pl.when(pl.col("others") > 0)
    .then(pl.format("what {} wrote was still there", "other_names"))
    .otherwise(pl.lit("no request on record had written there before"))
)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find reads during an open load or transfer, and through a share of pages that nobody had completed."""
    rows = counted(facts(context, ["not_ready"]))
    promised = "read {} that a share or a begun write promised and that {} not yet written; {}"
    why = pl.format(promised, EXTENT, ALL_WERE, _THERE)
    return judge(context, ID, rows, BY_TENANT, why)


RULE = Rule(
    id=ID,
    title="A read came before the write that was to fill the pages",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="critical",
    meaning=(
        "The pages were on their way to being valid, and the reader took them as valid already: a load, "
        "transfer or store was under way, or the pages had been published and shared although their writer "
        "had not completed them, and perhaps never did. What was read is what the page held before. It is "
        "a leak when that was another tenant's content."
    ),
    needs=("page.write", "page.read"),
    false_positives=(
        "A landing that is recorded later than it happened; a kernel that waits on the device for the "
        "load although its read is recorded at launch."
    ),
    references=(
        "LMCache/LMCache#207",
        "LMCache/LMCache#2772",
        "huggingface/text-generation-inference#2489",
        "sgl-project/sglang#22811",
        "sgl-project/sglang#39342",
    ),
    atlas=("AML.T0057", "AML.T0031"),
    cwe=("CWE-362", "CWE-696", "CWE-908"),
    query=query,
    positive=Example(
        title="attention runs while the load is under way",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
{"t":2.4,"seq":6,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"load","phase":"begin","tok":[0,4]}
{"t":2.5,"seq":7,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"prefill","tok":[0,4]}
{"t":2.6,"seq":8,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"load","phase":"end","tok":[0,4]}
""",
    ),
    negative=Example(
        title="published at schedule time, read after the write",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[3],"key":"k1","ns":{},\
"digest":"d1","request":"r1"}
{"t":2.2,"seq":4,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[3],"key":"k1","ns":{},\
"digest":"d1","request":"r2","tenant":"t-a","tok":[0,4]}
{"t":2.3,"seq":5,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.4,"seq":6,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"decode","tok":[0,4]}
""",
    ),
)
