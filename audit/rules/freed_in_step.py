"""A page was released while a running step used it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import HOLDER, PAGES, THEM, WERE
from kvwitness.audit.rules._pages import BY_TENANT, facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "freed-in-step"

_FREED = pl.format("{} {} released while a step that named {} was running", PAGES, WERE, THEM)
_TO = pl.when(pl.col("others") > 0).then("other_names").otherwise(HOLDER)
_TAKEN = pl.format("{}, and went to {} before the step ended", _FREED, _TO)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find pages that were released, or handed on as well, between a step's dispatch and its end."""
    freed, open_freed = _by_end(context, "step_free")
    taken, open_taken = _by_end(context, "step_realloc")
    return pl.concat(
        [
            judge(context, ID, taken, BY_TENANT, _TAKEN),
            judge(context, ID, freed, pl.lit("integrity"), _FREED),
            _undecided(judge(context, ID, open_taken, pl.lit("unproven"), _TAKEN)),
            _undecided(judge(context, ID, open_freed, pl.lit("unproven"), _FREED)),
        ]
    )


def _by_end(context: Context, fact: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The facts of steps of which the end is on record, and of all others: these may have been over by then."""
    rows = facts(context, [fact])
    if rows.is_empty():
        return rows, rows
    begun = context.events.select(since="ev", step="step").join(rows.lazy().select("since").unique(), on="since")
    ends = context.events.filter(pl.col("event") == "step.end").group_by("pool", "step").agg(end_ev=pl.col("ev").max())
    dated = rows.join(begun.collect(), on="since", how="left", maintain_order="left")
    dated = dated.join(ends.collect(), on=["pool", "step"], how="left", nulls_equal=True, maintain_order="left")
    over = (pl.col("end_ev") > pl.col("ev")).fill_null(False)
    return dated.filter(over).select(rows.columns), dated.filter(~over).select(rows.columns)


def _undecided(found: pl.DataFrame) -> pl.DataFrame:
    missing = pl.lit("the end of that step")
    silent = pl.col("missing").is_null()
    return found.with_columns(
        why=pl.when(silent).then(pl.format("{}; not proved: {}", "why", missing)).otherwise("why"),
        missing=pl.col("missing").fill_null(missing),
    )


RULE = Rule(
    id=ID,
    title="A page was released while a running step used it",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="high",
    meaning=(
        "A device step had been dispatched with the page in its table and had not finished when the page "
        "was released: the step goes on reading and writing there, whoever gets the page. The finding "
        "belongs to the request that lost the page. It is a leak when another tenant was given the page "
        "before the step ended. Of a step of which the end is not on record nobody can say whether it was still "
        "running: that is unproven."
    ),
    needs=("step.begin", "step.end", "page.free"),
    false_positives=(
        "Engines that order a later step behind the running one on the same stream, so that a new owner "
        "cannot write before the step has ended; steps whose end is recorded late."
    ),
    references=("vllm-project/vllm-ascend#13501", "vllm-project/vllm-ascend#14055"),
    atlas=("AML.T0057", "AML.T0031"),
    cwe=("CWE-416", "CWE-362"),
    query=query,
    positive=Example(
        title="an abort gives the page to another tenant inside the step",
        request="r1",
        verdict="leak",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"step.begin","pool":"e/0/kv","step":7,"pages":[3]}
{"t":2.2,"seq":4,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"abort"}
{"t":2.3,"seq":5,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
{"t":2.4,"seq":6,"source":"e/0","event":"step.end","pool":"e/0/kv","step":7}
""",
    ),
    negative=Example(
        title="the release waits for the step",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"e/0","event":"step.begin","pool":"e/0/kv","step":7,"pages":[3]}
{"t":2.2,"seq":4,"source":"e/0","event":"step.end","pool":"e/0/kv","step":7}
{"t":2.3,"seq":5,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[3],"request":"r1",\
"reason":"abort"}
{"t":2.4,"seq":6,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[3],"request":"r2","tenant":"t-b"}
""",
    ),
)
