"""A request read what another had written."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import CONTENT, EXTENT, counted
from kvwitness.audit.rules._pages import BY_TENANT, facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "foreign-page-read"

_READ = pl.format("read {} that held {}, with no share that admits it", EXTENT, CONTENT)
_CARRIED = pl.format("read {} that its own transfer had filled from pages that held {}", EXTENT, CONTENT)
_HIT = (
    pl.when(pl.col("others") > 0)
    .then(pl.format("was still reading {} when {} wrote there", EXTENT, "other_names"))
    .otherwise(pl.format("was still reading {} when a write with no owner landed there", EXTENT))
)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find reads of another's content: in place, brought by the reader's own transfer, or written during the
    read."""
    rows = counted(facts(context, ["foreign", "open_read_hit"]))
    hit = pl.col("fact") == "open_read_hit"
    carried = ~hit & (pl.col("x") == 1)
    kinds = [(~hit & ~carried, _READ), (carried, _CARRIED), (hit, _HIT)]
    return pl.concat([judge(context, ID, rows.filter(which), BY_TENANT, why) for which, why in kinds])


RULE = Rule(
    id=ID,
    title="A request read what another had written",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="critical",
    meaning=(
        "The last to write the positions that a request read was another request, and no share admits the "
        "reading: the page was handed out twice, reached by a wrong number, overwritten by a late write, "
        "or copied from a place that somebody else had taken over in the meantime. It is a leak when the "
        "content was another tenant's; the same tenant's, or a write that belongs to nobody, is wrong "
        "content."
    ),
    needs=("page.write", "page.read"),
    false_positives=(
        "Sharing that the engine does not record as `page.share`; requests of one tenant that are recorded "
        "under several tenant names."
    ),
    references=(
        "vllm-project/vllm#32255",
        "vllm-project/vllm#21570",
        "vllm-project/aibrix#1772",
        "sgl-project/sglang#24527",
        "sgl-project/sglang#27372",
        "sgl-project/sglang#31471",
        "sgl-project/sglang-omni#1607",
        "sgl-project/sglang-omni#1704",
        "ggml-org/llama.cpp#27148",
        "novitalabs/pegaflow#403",
        "waybarrios/vllm-mlx#384",
        "waybarrios/vllm-mlx#385",
    ),
    atlas=("AML.T0057", "AML.T0024"),
    cwe=("CWE-668", "CWE-488", "CWE-416"),
    query=query,
    positive=Example(
        title="a block table names the page of another tenant",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4],"request":"r2","tenant":"t-b"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[4],"request":"r2",\
"op":"forward","tok":[0,4]}
{"t":2.4,"seq":6,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"decode","tok":[0,4]}
""",
    ),
    negative=Example(
        title="a common prefix, published and shared",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16,\
"sharing":"global"}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[3],"key":"k1","ns":{},\
"digest":"d1","request":"r1"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.share","pool":"e/0/kv","pages":[3],"key":"k1","ns":{},\
"digest":"d1","request":"r2","tenant":"t-b","tok":[0,4]}
{"t":2.4,"seq":6,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"decode","tok":[0,4]}
""",
    ),
)
