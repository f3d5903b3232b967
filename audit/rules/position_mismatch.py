"""A request used a page at another place of its table than the page's own."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._extent import EXTENT, counted
from kvwitness.audit.rules._losses import first_losses, on_pools
from kvwitness.audit.rules._pages import facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "position-mismatch"


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find writes and reads whose positions do not belong to the page that they name."""
    # Pages of a session begin the table of whoever goes on in them, also when it wrote behind them before it read them.
    going_on = facts(context, ["session"]).select(*KEY, "pool").unique()
    rows = counted(facts(context, ["position"]).join(going_on, on=[*KEY, "pool"], how="anti", nulls_equal=True))
    why = pl.format("used {} for tokens whose place in its page table is elsewhere", EXTENT)
    return _against_sessions(context, judge(context, ID, rows, pl.lit("integrity"), why))


def _against_sessions(context: Context, found: pl.DataFrame) -> pl.DataFrame:
    """Where sessions keep pages of the pool, the table may begin with some of them: whatever was lost from the start
    of the record to the end of the request may have said so."""
    if found.is_empty() or context.gaps.is_empty():
        return found
    kept = context.events.filter((pl.col("to") == "session") | (pl.col("holder") == "session"))
    index = found.with_row_index("_row")
    ends = context.requests.select(*KEY, ev="last_ev")
    relying = (
        index.join(kept.select("pool").unique().collect(), on="pool", how="semi")
        .join(ends, on=KEY)
        .select("_row", *KEY, "pool", pl.lit(-1, pl.Int64).alias("since"), "ev")
    )
    lost = first_losses(context, on_pools(context, relying))
    unsure = pl.col("lost").is_not_null() & pl.col("missing").is_null()
    told = pl.format("{}; not proved: {}", "why", "lost")
    return (
        index.join(lost, on="_row", how="left", maintain_order="left")
        .with_columns(
            verdict=pl.when(unsure).then(pl.lit("unproven")).otherwise("verdict"),
            missing=pl.coalesce("missing", "lost"),
            why=pl.when(unsure).then(told).otherwise("why"),
        )
        .drop("_row", "lost")
    )


RULE = Rule(
    id=ID,
    title="A page was used at another place than its own",
    verdicts=(Verdict.INTEGRITY,),
    severity="high",
    meaning=(
        "The pages of a request stand in the order of its tokens: by allocation, by the place where a "
        "share puts them, or by the place of the page that a copy or move came from. A write or read named "
        "a page for positions that belong on another one: content lands at a wrong place, over what "
        "was right, and the right place stays unwritten."
    ),
    needs=("page.alloc",),
    false_positives=(
        "Engines that hand out pages in another order than that of the tokens, such as sparse or ring "
        "layouts, in a pool of kind `kv`, `draft` or `index`; a preemption that is not recorded."
    ),
    references=("tenstorrent/tt-metal#55630",),
    atlas=("AML.T0031",),
    cwe=("CWE-129", "CWE-787"),
    query=query,
    positive=Example(
        title="the second chunk starts over at the first page",
        request="r1",
        verdict="integrity",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3,4],"request":"r1",\
"tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3],"request":"r1",\
"op":"forward","tok":[4,8]}
""",
    ),
    negative=Example(
        title="window frees keep the places of the pages that stay",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3,4],"request":"r1",\
"tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[3,4],"request":"r1",\
"op":"forward","tok":[0,8]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"window"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[5],"request":"r1"}
{"t":2.4,"seq":6,"source":"e/0","event":"page.write","pool":"e/0/kv","pages":[5],"request":"r1",\
"op":"forward","tok":[8,12]}
{"t":2.5,"seq":7,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[4,5],"request":"r1",\
"op":"decode","tok":[4,12]}
""",
    ),
)
