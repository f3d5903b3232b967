"""A request read positions that nothing had written since the page was handed out."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import ALL_THEM, ALL_THEY, EXTENT, counted
from kvwitness.audit.rules._pages import BY_TENANT, facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "unwritten-page-read"

_OLD = (
    pl.when(pl.col("others") == 0)
    .then(pl.format("no request on record had ever written {}", ALL_THEM))
    .when(pl.col("x") == 1)
    .then(pl.format("in part {} still held what {} wrote, the rest no request ever wrote", ALL_THEY, "other_names"))
    .otherwise(pl.format("{} still held what {} wrote", ALL_THEY, "other_names"))
)
_UNWRITTEN = pl.format("read {} with no complete write since the last allocation; {}", EXTENT, _OLD)
_BROUGHT = pl.format("read {} that its own transfer had filled from pages that nothing had written", EXTENT)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find reads of positions without a complete write in the live generation, here or where they came
    from."""
    rows = counted(facts(context, ["unwritten"]))
    arrived = pl.col("x") == 1
    # Here the other side is the reader itself, whose transfer brought what nobody had written.
    brought = rows.filter(arrived).with_columns(
        other_request=pl.lit(None, pl.String), other_tenant=pl.lit(None, pl.String)
    )
    rows = rows.filter(~arrived).with_columns(x=pl.col("other_request").is_null().cast(pl.Int64))
    return pl.concat(
        [
            judge(context, ID, rows, BY_TENANT, _UNWRITTEN),
            judge(context, ID, brought, pl.lit("integrity"), _BROUGHT),
        ]
    )


RULE = Rule(
    id=ID,
    title="A request read positions that nothing had written",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="critical",
    meaning=(
        "Pages are not cleared when they change hands: until somebody writes a position, it shows the "
        "previous owner's content. This request read positions with no complete write since the page was "
        "handed out, be it a transfer that brought less than was read, a load that failed, or a chunk that "
        "missed its rows. It is a leak when what the position last held was another tenant's."
    ),
    needs=("page.alloc", "page.write", "page.read"),
    false_positives=(
        "Writes that are not recorded, such as an engine that records prefill but not the tokens it "
        "decodes; reads that are recorded for whole pages where attention masks what lies beyond the "
        "length."
    ),
    references=(
        "sgl-project/sglang#30233",
        "sgl-project/sglang#35421",
        "sgl-project/sglang#33507",
        "sgl-project/sglang#36988",
        "vllm-project/vllm#35219",
        "vllm-project/vllm#43990",
        "vllm-project/vllm#47021",
        "vllm-project/vllm#50754",
        "vllm-project/vllm#52234",
        "NVIDIA/TensorRT-LLM#14633",
        "NVIDIA/TensorRT-LLM#15018",
        "huggingface/text-generation-inference#2489",
        "tenstorrent/tt-metal#55630",
        "mudler/vllm.cpp#2672",
        "wtdcode/vllm-backport#33",
    ),
    atlas=("AML.T0057", "AML.T0024"),
    cwe=("CWE-908", "CWE-226"),
    query=query,
    positive=Example(
        title="a recycled page is read before anything is written to it",
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
{"t":2.4,"seq":6,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"decode","tok":[0,4]}
""",
    ),
    negative=Example(
        title="old bytes stay behind the written range, and nobody reads them",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
{"t":2.4,"seq":6,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"forward","tok":[0,2]}
{"t":2.5,"seq":7,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"decode","tok":[0,2]}
""",
    ),
)
