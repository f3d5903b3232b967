"""A read was completed after its page had been released."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import EXTENT, counted
from kvwitness.audit.rules._pages import BY_TENANT, facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "late-read"

_BY = (
    pl.when(pl.col("others") > 0)
    .then(pl.format("a write of {}", "other_names"))
    .otherwise(pl.lit("a write with no owner"))
)
_OVERWRITTEN = pl.format("its read of {} ended after {} had landed there", EXTENT, _BY)
_EXPIRED = pl.format("its read of {} ended after the lease had, with nothing changed there", EXTENT)
_RELEASED = pl.format("its read of {} ended after the release, with nothing changed there", EXTENT)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find reads that outlived the page's release or lease, and judge them by what became of the page."""
    rows = counted(facts(context, ["late_read"]))
    intact = pl.lit("exposure")
    kinds = [(2, BY_TENANT, _OVERWRITTEN), (1, intact, _EXPIRED), (0, intact, _RELEASED)]
    return pl.concat([judge(context, ID, rows.filter(pl.col("x") == x), v, why) for x, v, why in kinds])


RULE = Rule(
    id=ID,
    title="A read was complete only after its page had been released",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY, Verdict.EXPOSURE),
    severity="high",
    meaning=(
        "Someone was still copying a page (a transfer to another engine, an offload to the host, a kernel) "
        "when its holder let it go, or when the lease that protected it ended. What was copied depends on "
        "what became of the page meanwhile: another tenant's content is a leak, other content of the same "
        "tenant is wrong content, and where the bytes were still the old ones the order was wrong, "
        "without harm. A remote read counts as complete when its page has landed at the other end."
    ),
    needs=("page.free",),
    false_positives=(
        "A completion that is reported late by a sender that had long read the page; a release that is "
        "recorded when it is decided, not when it happens."
    ),
    references=(
        "vllm-project/vllm#21570",
        "vllm-project/vllm#47021",
        "vllm-project/vllm#49796",
        "vllm-project/vllm#56468",
        "vllm-project/aibrix#1772",
        "sgl-project/sglang#27444",
        "sgl-project/sglang#31427",
        "NVIDIA/TensorRT-LLM#12909",
        "NVIDIA/TensorRT-LLM#13713",
        "kvcache-ai/Mooncake#850",
        "kvcache-ai/Mooncake#4239",
    ),
    atlas=("AML.T0057", "AML.T0031"),
    cwe=("CWE-416", "CWE-367", "CWE-672"),
    query=query,
    positive=Example(
        title="the host copy of a page ends after another tenant has filled it",
        request="r1",
        verdict="leak",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"offload","phase":"begin","tok":[0,4]}
{"t":2.3,"seq":5,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish"}
{"t":2.4,"seq":6,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
{"t":2.5,"seq":7,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"forward","tok":[0,4]}
{"t":2.6,"seq":8,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"offload","phase":"end","tok":[0,4]}
""",
    ),
    negative=Example(
        title="the page is released when the copy has ended",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"offload","phase":"begin","tok":[0,4]}
{"t":2.3,"seq":5,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"offload","phase":"end","tok":[0,4]}
{"t":2.4,"seq":6,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish"}
{"t":2.5,"seq":7,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
{"t":2.6,"seq":8,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r2",\
"op":"forward","tok":[0,4]}
""",
    ),
)
