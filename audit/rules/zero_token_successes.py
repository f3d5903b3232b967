"""More successes without a single token of output than an engine usually has."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._anomaly_examples import request, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said, serving
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "zero-token-successes"


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of empty successes in each window of an engine with all of its windows before."""
    asked = (pl.col("max_new_tokens") != 0).fill_null(True)
    counted = context.requests.filter(
        pl.col("ok") & (pl.col("traffic") == "user") & asked & pl.col("completion_tokens").is_not_null()
    ).join(serving(context), on=KEY)
    cases = counted.select(
        "engine", at_ns="finished_ns", hit=pl.col("completion_tokens") == 0, ev="finished_ev"
    ).drop_nulls("at_ns")
    why = pl.format("{} of {}", said("successes", "came without a token of output"), "engine")
    return rate_findings(context, ID, cases, settings, subject=["engine"], why=why)


def _answers(tokens: int) -> str:
    return f'"status":200,"finish_reason":"stop","completion_tokens":{tokens}'


RULE = Rule(
    id=ID,
    title="Unusually many successes without output",
    verdicts=(Verdict.EXPOSURE,),
    severity="low",
    meaning=(
        "The share of an engine's successes that carry no token of output is far above what it was in all windows "
        "before. A refusal or an abort inside the engine that reaches the client as a success looks like this."
    ),
    needs=(),
    false_positives="Clients that only warm the cache; a model that ends at once on a new kind of prompt.",
    references=("sgl-project/sglang#35421",),
    atlas=("AML.T0029",),
    cwe=("CWE-390",),
    query=query,
    anomaly=True,
    params=params(cases="successes", hits="successes without output"),
    positive=Example(
        title="an hour in which half of the successes are empty",
        verdict="exposure",
        trace=week_then_hour(
            lambda n, t: request(n, answer=_answers(50)), lambda n, t: request(n, answer=_answers(50 * (n % 2)))
        ),
    ),
    negative=Example(
        title="empty ones as ever",
        trace=week_then_hour(
            lambda n, t: request(n, answer=_answers(n % 5)), lambda n, t: request(n, answer=_answers(n % 5))
        ),
    ),
)
