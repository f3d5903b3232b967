"""Transfers fail more often, and no client sees an error."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.rules._anomaly_examples import request, steady, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said
from kvwitness.audit.rules._frames import SECOND_NS, site_of
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict

ID = "silent-transfer-failures"


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of failed transfers in each window with all windows before, where the share of errors that
    clients see stayed as it was."""
    said_of = context.events.filter(pl.col("event").is_in(["transfer.begin", "transfer.failed"]))
    per_transfer = said_of.group_by("transfer").agg(
        engine=site_of("dst_pool").drop_nulls().first(),
        at_ns=pl.col("ref_ns").min(),
        hit=(pl.col("event") == "transfer.failed").any(),
        ev=pl.col("ev").filter(pl.col("event") == "transfer.failed").min(),
    )
    cases = per_transfer.drop_nulls(["engine", "transfer"]).collect()
    why = pl.format("{}, while clients saw no more errors than before: {}", said("transfers", "failed"), "engine")
    flat = _flat(context, settings)
    return rate_findings(context, ID, cases, settings, subject=["engine"], why=why, only=flat)


def _flat(context: Context, settings: Settings) -> pl.DataFrame:
    """Windows in which the share of answers that are server errors is at most so many times that of all before."""
    window_ns = int(float(settings["window_s"]) * SECOND_NS)
    answers = context.requests.filter(pl.col("finished_ns").is_not_null() & (pl.col("traffic") == "user"))
    rates = (
        answers.group_by(window=pl.col("finished_ns") // window_ns)
        .agg(n=pl.len(), errors=(pl.col("status") >= 500).fill_null(False).sum())
        .sort("window")
    )
    before = (pl.col("errors").cum_sum() - pl.col("errors") + 1) / (pl.col("n").cum_sum() - pl.col("n") + 1)
    return rates.filter(pl.col("errors") / pl.col("n") <= float(settings["flat"]) * before).select("window")


def _transferred(n: int, failed: bool) -> list[tuple[str, str]]:
    received, finished = request(n)
    begin = f'"event":"transfer.begin","transfer":"x{n}","request":"r{n}","dst_pool":"d/0/kv","dst_pages":[1]'
    end = f'"event":"transfer.{"failed" if failed else "done"}","transfer":"x{n}","observer":"receiver"'
    return [received, ("d/0", begin), ("d/0", end), finished]


RULE = Rule(
    id=ID,
    title="Transfers fail while clients see no errors",
    verdicts=(Verdict.EXPOSURE,),
    severity="medium",
    meaning=(
        "The share of transfers to an engine that fail is far above what it was in all windows before, and the share "
        "of errors that clients receive is not. Either every failed transfer was computed anew, which costs time only, "
        "or requests were answered from pages that did not arrive."
    ),
    needs=(),
    false_positives="A link that is slow and a fallback that works; engines that report a retry as a failure.",
    references=("vllm-project/vllm#46283", "ai-dynamo/dynamo#7489"),
    atlas=("AML.T0029",),
    cwe=("CWE-390", "CWE-754"),
    query=query,
    anomaly=True,
    params=(
        *params(cases="transfers", hits="failed transfers"),
        Param("flat", 2.0, "how many times their usual share errors that clients see may be"),
    ),
    positive=Example(
        title="every third transfer fails for an hour, every answer is a 200",
        verdict="exposure",
        trace=week_then_hour(lambda n, t: _transferred(n, n % 50 == 0), lambda n, t: _transferred(n, n % 3 == 0)),
    ),
    negative=Example(
        title="transfers that fail as ever",
        trace=steady(lambda n, t: _transferred(n, n % 10 == 0)),
    ),
)
