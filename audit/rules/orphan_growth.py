"""More requests than before leave pages behind."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._anomaly_examples import steady, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said, serving
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "orphan-growth"


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of ended requests whose pages stayed their own with all windows before."""
    left = context.facts.filter(pl.col("fact") == "orphan").group_by(KEY).agg(left=pl.col("ev").min())
    ended = context.requests.filter(pl.col("ended_ns").is_not_null()).join(serving(context), on=KEY)
    cases = ended.join(left, on=KEY, how="left").select(
        "engine", at_ns="ended_ns", hit=pl.col("left").is_not_null(), ev="ended_ev"
    )
    why = pl.format("{} on {}", said("requests that ended", "left pages behind"), "engine")
    return rate_findings(context, ID, cases, settings, subject=["engine"], why=why)


def _held(n: int, freed: bool) -> list[tuple[str, str]]:
    page = f'"pool":"e/0/kv","pages":[{n + 1}],"request":"r{n}"'
    lines = [
        ("e/0", f'"event":"page.alloc",{page},"tenant":"t-a"'),
        ("e/0", f'"event":"request.finished","request":"r{n}","status":200'),
    ]
    return [*lines, ("e/0", f'"event":"page.free",{page},"reason":"finish"')] if freed else lines


_OPENING = [("e/0", '"event":"engine.pool","pool":"e/0/kv","page_tokens":4,"pages_total":4096')]

RULE = Rule(
    id=ID,
    title="More requests than before leave pages behind",
    verdicts=(Verdict.EXPOSURE,),
    severity="low",
    meaning=(
        "The share of an engine's requests that end and whose pages nobody releases within ten minutes is far above "
        "what it was in all windows before: a path that forgets them is taken more often. orphaned-pages names each; "
        "this rule says that their number grows."
    ),
    needs=("page.alloc", "page.free"),
    false_positives="Releases that are not recorded; a burst of clients that go away.",
    references=("sgl-project/sglang#30325", "vllm-project/vllm#46283"),
    atlas=("AML.T0029",),
    cwe=("CWE-401", "CWE-772"),
    query=query,
    anomaly=True,
    params=params(cases="requests that ended", hits="requests that left pages behind"),
    positive=Example(
        title="an hour in which every second request forgets its page",
        verdict="exposure",
        trace=week_then_hour(lambda n, t: _held(n, n % 50 != 0), lambda n, t: _held(n, n % 2 == 0), _OPENING),
    ),
    negative=Example(
        title="one in five, as ever",
        trace=steady(lambda n, t: _held(n, n % 5 != 0), _OPENING),
    ),
)
