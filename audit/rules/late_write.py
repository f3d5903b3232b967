"""A write landed on pages that its request no longer held."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import EXTENT, HOLDER, PAGES, THEM, counted
from kvwitness.audit.rules._pages import BY_TENANT, facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "late-write"

WORD = "word from the writer of the transfer (done, failed or drained)"

_WRITE = (
    pl.when(pl.col("others") > 0)
    .then(pl.format("a write of {}", "other_names"))
    .otherwise(pl.lit("a write for an earlier holder"))
)
_BY_THEN = pl.when(pl.col("request").is_null()).then(HOLDER).otherwise(pl.lit("this request"))
_ON_OTHERS = pl.format("{} landed on {} that {} held by then", _WRITE, EXTENT, _BY_THEN)
_ON_NOBODY = pl.format("its own write landed on {} after it had lost {}, and nobody held {}", EXTENT, THEM, THEM)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find landed late writes, and targets that were given away while a write may still be under way."""
    rows = counted(facts(context, ["late_write"]))
    unowned = pl.col("x") == 1
    itself = rows.filter(unowned).with_columns(pl.lit(None, pl.String).alias("other_request"))
    itself = itself.with_columns(pl.lit(None, pl.String).alias("other_tenant"))
    return pl.concat(
        [
            judge(context, ID, rows.filter(~unowned), BY_TENANT, _ON_OTHERS),
            judge(context, ID, itself, pl.lit("integrity"), _ON_NOBODY),
            _released_blindly(context),
        ]
    )


def _released_blindly(context: Context) -> pl.DataFrame:
    """Targets of a transfer that were freed on a timeout, with no end of the transfer on record."""
    told = pl.format(
        "released {} on a timeout while a transfer into {} had not been reported done, failed or drained",
        PAGES,
        THEM,
    )
    found = judge(context, ID, facts(context, ["timeout_free"]), pl.lit("unproven"), told)
    silent = pl.col("missing").is_null()
    return found.with_columns(
        why=pl.when(silent).then(pl.format("{}; not proved: {}", "why", pl.lit(WORD))).otherwise("why"),
        missing=pl.col("missing").fill_null(WORD),
    )


RULE = Rule(
    id=ID,
    title="A write landed on pages that had changed hands",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="critical",
    meaning=(
        "Bytes that were on their way for one request arrived after the page had been released: in the "
        "pages of the next owner, or in free memory. The finding belongs to whoever held the page at "
        "that moment, and to the writer where nobody did. It is a leak when writer and owner are of "
        "different tenants. A transfer target that is freed on a timeout, with no word from the writer, "
        "is told of as unproven: nobody can say whether the bytes still came."
    ),
    needs=("page.alloc", "page.free", "page.write"),
    false_positives=(
        "A write whose event is recorded long after the bytes landed; a release that is recorded before "
        "the engine has waited for the writer."
    ),
    references=(
        "vllm-project/vllm#32255",
        "sgl-project/sglang#24527",
        "sgl-project/sglang#27372",
        "novitalabs/pegaflow#403",
    ),
    atlas=("AML.T0057", "AML.T0031"),
    cwe=("CWE-416", "CWE-362", "CWE-672"),
    query=query,
    positive=Example(
        title="the bytes arrive when the page is already another tenant's",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1.0,"seq":1,"source":"d/0","event":"engine.pool","pool":"d/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[5],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","phase":"begin","tok":[0,4]}
{"t":2.2,"seq":4,"source":"d/0","event":"page.free","pool":"d/0/kv","pages":[5],"request":"r1",\
"reason":"abort"}
{"t":2.3,"seq":5,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[5],"request":"r2","tenant":"t-b"}
{"t":2.4,"seq":6,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","phase":"end","tok":[0,4]}
""",
    ),
    negative=Example(
        title="the release waits for the write",
        trace="""\
{"t":1.0,"seq":1,"source":"d/0","event":"engine.pool","pool":"d/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[5],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","phase":"begin","tok":[0,4]}
{"t":2.2,"seq":4,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","phase":"end","tok":[0,4]}
{"t":2.3,"seq":5,"source":"d/0","event":"page.free","pool":"d/0/kv","pages":[5],"request":"r1",\
"reason":"abort"}
{"t":2.4,"seq":6,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[5],"request":"r2","tenant":"t-b"}
""",
    ),
)
