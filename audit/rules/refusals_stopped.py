"""Prompts that are too long were refused again and again, and are not any more."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.rules._anomaly_examples import request, steady, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said
from kvwitness.audit.rules._frames import site_of
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "refusals-stopped"

_TOO_LONG = r"(?i)long|length|limit|exceed|context|max"
_STATUS = [400, 413, 422]


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of requests that each party refuses as too long with all windows before.

    Every party that ever refused is compared with all user requests of the record: it may be one of many, and its share
    then is small, but not none.
    """
    refused = context.events.filter(
        (pl.col("event") == "request.rejected")
        & (pl.col("status").is_in(_STATUS) | pl.col("reason").str.contains(_TOO_LONG)).fill_null(False)
    )
    refusals = refused.select("request", engine=site_of("source"), refused_ev="ev").unique(
        ["request", "engine"], keep="first"
    )
    parties = refusals.select("engine").unique().collect().drop_nulls()
    received = context.requests.filter((pl.col("traffic") == "user") & pl.col("received_ns").is_not_null())
    cases = received.select("request", at_ns="received_ns", ev="received_ev").join(parties, how="cross")
    hits = cases.join(refusals.collect(), on=["request", "engine"], how="left").with_columns(
        hit=pl.col("refused_ev").is_not_null()
    )
    why = pl.format("{} by {}", said("requests", "were refused as too long"), "engine")
    return rate_findings(context, ID, hits, settings, subject=["engine"], why=why, upper=False)


def _refused(n: int) -> list[tuple[str, str]]:
    received, finished = request(n, answer='"status":400')
    return [received, ("e/0", f'"event":"request.rejected","request":"r{n}","reason":"input_too_long"'), finished]


RULE = Rule(
    id=ID,
    title="Refusals of over-long prompts stopped",
    verdicts=(Verdict.EXPOSURE,),
    severity="medium",
    meaning=(
        "A party that used to refuse a share of all requests as too long refuses far fewer, or none, of about as many. "
        "Either nobody sends such prompts any more, or they are no longer refused: the latter is how limits that "
        "disagree begin to be served."
    ),
    needs=("request.received",),
    false_positives="A client that was mended; a limit that was raised; a refusal that moved to another party.",
    references=("sgl-project/sglang#35421",),
    atlas=("AML.T0040",),
    cwe=("CWE-1284",),
    query=query,
    anomaly=True,
    params=params(window_s=21_600.0, min_window=50, min_hits=10, factor=4.0, cases="requests", hits="refusals"),
    positive=Example(
        title="a third of the prompts was refused, and suddenly none is",
        verdict="exposure",
        trace=week_then_hour(lambda n, t: _refused(n) if n % 3 == 0 else request(n), lambda n, t: request(n)),
    ),
    negative=Example(
        title="refusals as ever",
        trace=steady(lambda n, t: _refused(n) if n % 3 == 0 else request(n)),
    ),
)
