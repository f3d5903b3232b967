"""A page had two owners, or was released by one who did not hold it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import EXTENT, HOLDER, PAGES, THEM, WERE, counted
from kvwitness.audit.rules._pages import BY_TENANT, facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "double-ownership"

_OTHER = pl.when(pl.col("others") > 0).then("other_names").otherwise(HOLDER)
_TAKER = pl.when(pl.col("request").is_null()).then(HOLDER).otherwise(pl.lit("this request"))
_GIVEN = pl.format("{} went to {} while {} still held {}", PAGES, _TAKER, _OTHER, THEM)
_WRITTEN = pl.format("{} wrote {} that {} holds and that it never held", _OTHER, EXTENT, _TAKER)
_FREED = pl.format(
    "{} {} released in the name of {}, which did not hold {}{}",
    PAGES,
    WERE,
    _TAKER,
    THEM,
    pl.when(pl.col("others") > 0).then(pl.format("; {} did", "other_names")).otherwise(pl.lit("")),
)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find pages that were handed out while held, written by an outsider, or released by one."""
    kinds = [
        ("double_alloc", BY_TENANT, _GIVEN),
        ("double_write", BY_TENANT, _WRITTEN),
        ("double_free", BY_TENANT, _FREED),
    ]
    return pl.concat([judge(context, ID, counted(facts(context, [f])), v, why) for f, v, why in kinds])


RULE = Rule(
    id=ID,
    title="A page had two owners, or was released by one who did not hold it",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="critical",
    meaning=(
        "The allocator's books and its users disagree: a page was handed out while somebody still held it, "
        "a request wrote into pages that were never its own, or a page was released a second time or by "
        "one who did not hold it. A second owner is a leak when the two are of different tenants, because "
        "each can read what the other writes. So is a release of another tenant's page: it will be handed "
        "out while it is in use. The release of a page that nobody holds is wrong bookkeeping."
    ),
    needs=("page.alloc",),
    false_positives=(
        "Releases that are not recorded, so that the next allocation looks like a second one; engines that "
        "record the release of a shared page once for all who share it."
    ),
    references=(
        "sgl-project/sglang#30937",
        "sgl-project/sglang-omni#1607",
        "sgl-project/sglang-omni#1704",
    ),
    atlas=("AML.T0057", "AML.T0031"),
    cwe=("CWE-415", "CWE-667", "CWE-362"),
    query=query,
    positive=Example(
        title="a page is handed out twice",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
""",
    ),
    negative=Example(
        title="a page passes to the index, is evicted, and is handed out again",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"finish","to":"cache"}
{"t":2.2,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"holder":"cache",\
"reason":"evict"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
""",
    ),
)
