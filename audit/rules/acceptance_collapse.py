"""Drafted tokens are accepted far less often than before: a lead, and no more."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._anomaly_examples import request, steady, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said, serving
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict

ID = "acceptance-collapse"


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of answers of low acceptance in each window of an engine with all windows before.

    Low is what lies below a part of the engine's mean over all answers before.
    """
    said_so = context.events.filter((pl.col("event") == "request.finished") & pl.col("extra").is_not_null())
    lengths = said_so.select(
        "request",
        incarnation=pl.col("incarnation").cast(pl.Int32).fill_null(0),
        at_ns="ref_ns",
        ev="ev",
        length=pl.col("extra").str.json_path_match("$.accept_length").cast(pl.Float64, strict=False),
    )
    known = lengths.drop_nulls("length").unique(KEY, keep="last").collect()
    rows = known.join(serving(context), on=KEY).sort("ev")
    before = (pl.col("length").cum_sum() - pl.col("length")) / pl.int_range(pl.len())
    cases = rows.with_columns(hit=(pl.col("length") < float(settings["low"]) * before.over("engine")).fill_null(False))
    why = pl.format("{} of {}", said("answers", "had few of their drafted tokens accepted"), "engine")
    return rate_findings(context, ID, cases, settings, subject=["engine"], why=why)


def _accepted(n: int, length: float) -> list[tuple[str, str]]:
    return request(n, answer=f'"status":200,"completion_tokens":50,"accept_length":{length}')


RULE = Rule(
    id=ID,
    title="Acceptance of drafted tokens collapsed",
    verdicts=(Verdict.EXPOSURE,),
    severity="info",
    meaning=(
        "Far more answers of an engine than before had few of their drafted tokens accepted. Speculative decoding "
        "notices wrong pages before anybody else does: where target and draft see other content, they disagree. Alone "
        "it proves nothing; look at what else was found on that engine at that time."
    ),
    needs=(),
    false_positives="Another kind of prompt; a draft model that was exchanged; higher temperatures.",
    references=(),
    atlas=("AML.T0029",),
    cwe=("CWE-682",),
    query=query,
    anomaly=True,
    params=(
        *params(cases="answers that state `accept_length`", hits="answers of low acceptance"),
        Param("low", 0.6, "below which part of the mean before an acceptance length is low"),
    ),
    positive=Example(
        title="from three tokens to one",
        verdict="exposure",
        trace=week_then_hour(lambda n, t: _accepted(n, 3 + n % 3 / 10), lambda n, t: _accepted(n, 1.1)),
    ),
    negative=Example(
        title="it varies as ever",
        trace=steady(lambda n, t: _accepted(n, 1 + n % 5 / 2)),
    ),
)
