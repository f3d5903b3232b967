"""A reserved page went to a request, or a write with no owner landed outside the reserved pages."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import EXTENT, HOLDER, PAGES, counted
from kvwitness.audit.rules._pages import facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "reserved-page-use"

_WRITE = (
    pl.when(pl.col("others") > 0)
    .then(pl.format("a write of {}", "other_names"))
    .otherwise(pl.lit("a write with no owner"))
)


def _landed(holder: pl.Expr) -> pl.Expr:
    return pl.format("{} landed on {} that {} held", _WRITE, EXTENT, holder)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find reserved pages that were handed out, and stray writes by whose page they hit."""
    stray = counted(facts(context, ["stray_write"]))
    of_request = pl.col("request").is_not_null()
    held = pl.col("holder").is_not_null()
    given = pl.format("was given {} that the engine reserves", PAGES)
    kinds = [
        (facts(context, ["reserved_alloc"]), given),
        (stray.filter(of_request), _landed(pl.lit("this request"))),
        (stray.filter(~of_request & held), _landed(HOLDER)),
        (stray.filter(~of_request & ~held), _landed(pl.lit("nobody"))),
    ]
    return pl.concat([judge(context, ID, rows, pl.lit("integrity"), why) for rows, why in kinds])


RULE = Rule(
    id=ID,
    title="A write with no owner landed on a page in use, or a reserved page was handed out",
    verdicts=(Verdict.INTEGRITY,),
    severity="high",
    meaning=(
        "Engines keep pages aside for padding rows and idle batches: everybody may write there and nobody "
        "reads. Here such a write, which belongs to no request, landed on a page that is not reserved, or "
        "a reserved page was given to a request as its own. Either way content of a request or of the "
        "reuse index is overwritten by rows that mean nothing. Where no request holds the page, the "
        "finding belongs to the engine."
    ),
    needs=("engine.pool", "page.alloc"),
    false_positives=(
        "Reserved pages that `engine.pool` does not name; an engine that leaves the request out of the "
        "writes it records."
    ),
    references=("NVIDIA/TensorRT-LLM#13278", "vllm-project/vllm#56734"),
    atlas=("AML.T0031",),
    cwe=("CWE-787", "CWE-825"),
    query=query,
    positive=Example(
        title="padding rows write through a stale table row",
        request="r1",
        verdict="integrity",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16,\
"reserved":[0]}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"op":"dummy","tok":[0,1]}
""",
    ),
    negative=Example(
        title="padding rows write the reserved page, and everybody reads it",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16,\
"reserved":[0]}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[0],"op":"dummy","tok":[0,1]}
{"t":2.3,"seq":5,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[0,3],"request":"r1",\
"op":"decode"}
""",
    ),
)
