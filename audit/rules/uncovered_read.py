"""Decode read positions that nothing had brought or computed for it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.rules._extent import EXTENT, counted
from kvwitness.audit.rules._pages import facts, judge
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import number_of

ID = "uncovered-read"

_COVERED = (
    pl.when(pl.col("x") <= 0)
    .then(pl.lit("none of its positions"))
    .when(pl.col("x") == 1)
    .then(pl.lit("only its first position"))
    .otherwise(pl.format("only its first {} positions", number_of("x")))
)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find decode reads past the union of what was transferred, shared and written locally."""
    rows = counted(facts(context, ["uncovered"]))
    why = pl.format(
        "decode read {} although {} had been transferred, shared or written for it by then", EXTENT, _COVERED
    )
    return judge(context, ID, rows, pl.lit("integrity"), why)


RULE = Rule(
    id=ID,
    title="Decode went on past what was transferred",
    verdicts=(Verdict.INTEGRITY,),
    severity="high",
    meaning=(
        "A request that came to its decode engine by a transfer read positions there that the transfer did "
        "not bring, that it did not share and that were not computed locally. The two engines disagree on "
        "the length of the prompt: attention ran over whatever the pages held. Whose content that was is "
        "told by `unwritten-page-read` and `foreign-page-read`."
    ),
    needs=("page.read", "transfer.begin"),
    false_positives=(
        "A decode engine that computes the missing positions itself and does not record those writes; a "
        "transfer that is reported with fewer tokens than it moved, where landings are not recorded."
    ),
    references=(
        "sgl-project/sglang#30233",
        "sgl-project/sglang#35421",
        "sgl-project/sglang#33507",
        "sgl-project/sglang#36988",
    ),
    atlas=("AML.T0057", "AML.T0031"),
    cwe=("CWE-125", "CWE-908"),
    query=query,
    positive=Example(
        title="one position arrives, twelve are read",
        request="r1",
        verdict="integrity",
        trace="""\
{"t":1.0,"seq":1,"source":"d/0","event":"engine.pool","pool":"d/0/kv","page_tokens":4,"pages_total":16}
{"t":1.1,"seq":1,"source":"p/0","event":"engine.pool","pool":"p/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"p/0","event":"page.alloc","pool":"p/0/kv","pages":[1],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"p/0","event":"page.write","pool":"p/0/kv","pages":[1],"request":"r1",\
"op":"forward","tok":[0,1]}
{"t":2.2,"seq":2,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[[5,7]],"request":"r1"}
{"t":2.3,"seq":4,"source":"p/0","event":"transfer.begin","transfer":"x1","request":"r1","src_pool":"p/0/kv",\
"src_pages":[1],"dst_pool":"d/0/kv","dst_pages":[5],"tokens":1}
{"t":2.4,"seq":3,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","tok":[0,1]}
{"t":2.5,"seq":4,"source":"d/0","event":"transfer.done","transfer":"x1","request":"r1","tokens":1}
{"t":2.6,"seq":5,"source":"d/0","event":"page.read","pool":"d/0/kv","pages":[[5,7]],"request":"r1",\
"op":"decode","tok":[0,12]}
""",
    ),
    negative=Example(
        title="what did not arrive is computed before it is read",
        trace="""\
{"t":1.0,"seq":1,"source":"d/0","event":"engine.pool","pool":"d/0/kv","page_tokens":4,"pages_total":16}
{"t":1.1,"seq":1,"source":"p/0","event":"engine.pool","pool":"p/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"p/0","event":"page.alloc","pool":"p/0/kv","pages":[1],"request":"r1","tenant":"t-a"}
{"t":2.1,"seq":3,"source":"p/0","event":"page.write","pool":"p/0/kv","pages":[1],"request":"r1",\
"op":"forward","tok":[0,4]}
{"t":2.2,"seq":2,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[[5,7]],"request":"r1"}
{"t":2.3,"seq":4,"source":"p/0","event":"transfer.begin","transfer":"x1","request":"r1","src_pool":"p/0/kv",\
"src_pages":[1],"dst_pool":"d/0/kv","dst_pages":[5],"tokens":4}
{"t":2.4,"seq":3,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","tok":[0,4]}
{"t":2.5,"seq":4,"source":"d/0","event":"transfer.done","transfer":"x1","request":"r1","tokens":4}
{"t":2.6,"seq":5,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[[6,7]],"request":"r1",\
"op":"forward","tok":[4,12]}
{"t":2.7,"seq":6,"source":"d/0","event":"page.read","pool":"d/0/kv","pages":[[5,7]],"request":"r1",\
"op":"decode","tok":[0,12]}
""",
    ),
)
