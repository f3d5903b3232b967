"""The lengths of prompts are distributed in another way than before."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._anomaly_examples import request, steady, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said
from kvwitness.audit.rules._frames import acting_engine
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import number_of

ID = "prompt-length-shift"


def _lengths(context: Context) -> pl.DataFrame:
    """Prompt lengths by subject: each tenant with each of its models, and each engine that gave pages.

    `bucket` is a power of two.
    """
    measured = context.requests.filter(
        (pl.col("traffic") == "user") & (pl.col("prompt_tokens") > 0) & pl.col("received_ns").is_not_null()
    )
    measured = measured.with_columns(bucket=pl.col("prompt_tokens").log(2).floor().cast(pl.Int64))
    columns = ["tenant", "engine", "model", "bucket", "received_ns", "received_ev"]
    none = pl.lit(None, pl.String)
    by_tenant = measured.filter(pl.col("tenant").is_not_null()).with_columns(engine=none)
    given = keyed(context.acts.filter(pl.col("event") == "page.alloc"))
    served = given.select(*KEY, engine=acting_engine(context)).unique().collect()
    by_engine = measured.join(served, on=KEY).with_columns(tenant=none, model=none)
    return pl.concat([by_tenant.select(columns), by_engine.select(columns)])


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of each power of two among the lengths of a window with all windows before.

    Where lengths move, the share of some power of two grows: each is judged, and the least probable told.
    """
    rows = _lengths(context)
    subject = ["tenant", "engine", "model"]
    buckets = rows.select(*subject, "bucket").unique().rename({"bucket": "of"})
    cases = rows.join(buckets, on=subject, nulls_equal=True).select(
        *subject, "of", at_ns="received_ns", hit=pl.col("bucket") == pl.col("of"), ev="received_ev"
    )
    low = number_of(pl.lit(2, pl.Int64).pow(pl.col("of")).cast(pl.Int64))
    high = number_of(pl.lit(2, pl.Int64).pow(pl.col("of") + 1).cast(pl.Int64) - 1)
    whose = pl.coalesce("tenant", "engine")
    model = pl.when(pl.col("model").is_null()).then(pl.lit("")).otherwise(pl.format(" to {}", "model"))
    why = pl.format("{}: {} to {} tokens, {}{}", said("prompts", "were of one size"), low, high, whose, model)
    return rate_findings(context, ID, cases, settings, subject=subject, by=["of"], why=why)


def _sent(n: int, length: int) -> list[tuple[str, str]]:
    return request(n, received=f'"prompt_tokens":{length}')[:1]


RULE = Rule(
    id=ID,
    title="Prompt lengths moved away from their baseline",
    verdicts=(Verdict.EXPOSURE,),
    severity="low",
    meaning=(
        "The prompts that a tenant sent to a model, or an engine served, in one window are distributed over lengths "
        "(by powers of two) in another way than in all windows before. Alone it says that usage changed; "
        "beside other findings it dates when an edge of the system began to be used."
    ),
    needs=("request.received",),
    false_positives="New applications, seasons and batch jobs change lengths for good reasons.",
    references=("sgl-project/sglang#35421",),
    atlas=("AML.T0040",),
    cwe=("CWE-1284",),
    query=query,
    anomaly=True,
    params=params(
        window_s=21_600.0,
        min_window=50,
        min_hits=20,
        factor=2.0,
        cases="prompts",
        hits="prompts of the size that grew",
    ),
    positive=Example(
        title="an hour of long prompts after a week of short ones",
        verdict="exposure",
        trace=week_then_hour(
            lambda n, t: _sent(2 * n, 100) + _sent(2 * n + 1, 110),
            lambda n, t: _sent(2 * n, 9000) + _sent(2 * n + 1, 9000),
        ),
    ),
    negative=Example(
        title="the same mixture as ever",
        trace=steady(lambda n, t: _sent(2 * n, (100, 400, 900)[n % 3]) + _sent(2 * n + 1, 100)),
    ),
)
