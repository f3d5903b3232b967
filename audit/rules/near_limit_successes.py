"""More successes close to the limit than an engine usually has."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._anomaly_examples import request, steady, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said
from kvwitness.audit.rules._frames import acting_engine, site_of
from kvwitness.audit.rules._paths import with_paths
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict

ID = "near-limit-successes"


def _successes(context: Context, share: float) -> pl.DataFrame:
    """Answered requests per engine that gave them pages or may have, and whether they came near its limit in force."""
    given = keyed(context.acts.filter(pl.col("event") == "page.alloc"))
    served = given.group_by(*KEY, engine=acting_engine(context)).agg(ev=pl.col("first_ev").min()).sort("ev")
    limits = (
        context.events.filter((pl.col("event") == "engine.limits") & pl.col("input_limit_tokens").is_not_null())
        .select(engine=site_of("engine"), at="ev", limit="input_limit_tokens")
        .sort("at")
        .collect()
    )
    dated = served.collect().join_asof(limits, left_on="ev", right_on="at", by="engine", check_sortedness=False)
    counted = context.requests.filter(
        pl.col("ok") & (pl.col("traffic") == "user") & pl.col("prompt_tokens").is_not_null()
    )
    told = ["prompt_tokens", "received_ev", "received_ns"]
    rows = dated.filter(pl.col("limit").is_not_null()).join(counted.select(*KEY, *told), on=KEY)
    if not limits.is_empty():  # those without page events, by the narrowest way that they may have gone
        blind = with_paths(context, counted.join(dated, on=KEY, how="anti"))
        least = blind.select(*KEY, *told, engine="least_engine", limit="least")
        rows = pl.concat([rows.select(least.columns), least])
    near = pl.col("prompt_tokens") >= share * pl.col("limit")
    return rows.select("engine", at_ns="received_ns", hit=near, ev="received_ev")


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of an engine's successes that came near its limit in each window with all windows before."""
    cases = _successes(context, float(settings["near_share"])).drop_nulls("at_ns")
    why = pl.format("{} of {}", said("successes", "came near the limit"), "engine")
    return rate_findings(context, ID, cases, settings, subject=["engine"], why=why)


_OPENING = [("e/0", '"event":"engine.limits","engine":"e","input_limit_tokens":100')]


def _served(n: int, length: int) -> list[tuple[str, str]]:
    """An engine with a limit of 100 answers a prompt."""
    received, finished = request(n, received=f'"prompt_tokens":{length}')
    pages = f'"event":"page.alloc","pool":"e/0/kv","pages":[1],"request":"r{n}"'
    return [received, ("e/0", pages), finished]


RULE = Rule(
    id=ID,
    title="Unusually many successes close to the limit",
    verdicts=(Verdict.EXPOSURE,),
    severity="low",
    meaning=(
        "The share of an engine's successes whose prompt reaches 90 % of its enforced limit or more is "
        "far above what it was in all windows before. That is where refusals, placeholders and truncation "
        "go wrong, and where somebody looks for the edge."
    ),
    needs=("engine.limits", "request.received", "request.finished"),
    false_positives="A batch job of long documents; a limit that was lowered.",
    references=("sgl-project/sglang#35421",),
    atlas=("AML.T0040",),
    cwe=("CWE-1284",),
    query=query,
    anomaly=True,
    params=(
        Param("near_share", 0.9, "share of the limit from which a prompt counts as near it"),
        *params(min_baseline=200, cases="successes", hits="successes near the limit"),
    ),
    positive=Example(
        title="an hour in which every second prompt is long, after a week of short ones",
        verdict="exposure",
        trace=week_then_hour(lambda n, t: _served(n, 20), lambda n, t: _served(n, 20 + 75 * (n % 2)), _OPENING),
    ),
    negative=Example(
        title="one in four is long, as ever",
        trace=steady(lambda n, t: _served(n, 20 if n % 4 else 95), _OPENING),
    ),
)
