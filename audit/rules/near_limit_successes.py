"""More successes close to the limit than an engine usually has."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import SECOND_NS, acting_engine, report, site_of
from kvwitness.audit.rules._paths import with_paths
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict
from kvwitness.audit.wording import number_of, several_of

ID = "near-limit-successes"


def _successes(context: Context, share: float) -> pl.DataFrame:
    """Answered requests per engine that gave them pages or may have, and whether they came near its limit in force."""
    given = keyed(context.events.filter(pl.col("event") == "page.alloc"))
    served = given.group_by(*KEY, engine=acting_engine(context)).agg(ev=pl.col("ev").min()).sort("ev")
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
    return rows.with_columns(near=pl.col("prompt_tokens") >= share * pl.col("limit"))


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Compare each window of an engine with all of its windows before."""
    window_ns = int(float(settings["window_s"]) * SECOND_NS)
    rows = _successes(context, float(settings["near_share"]))
    windows = (
        rows.sort("received_ns")
        .group_by("engine", pl.col("received_ns").floordiv(window_ns).alias("window"), maintain_order=True)
        .agg(n=pl.len(), near=pl.col("near").sum(), evs=pl.col("received_ev").filter(pl.col("near")))
    )
    windows = windows.with_columns(
        base_n=pl.col("n").cum_sum().over("engine") - pl.col("n"),
        base_near=pl.col("near").cum_sum().over("engine") - pl.col("near"),
    )
    expected = (pl.col("base_near") + 1) / (pl.col("base_n") + 2)
    rate = pl.col("near") / pl.col("n")
    deviation = (rate - expected) / (expected * (1 - expected) / pl.col("n")).sqrt()
    found = windows.with_columns(expected=expected, rate=rate, deviation=deviation).filter(
        (pl.col("n") >= int(settings["min_window"]))
        & (pl.col("base_n") >= int(settings["min_baseline"]))
        & (pl.col("near") >= int(settings["min_near"]))
        & (pl.col("deviation") >= float(settings["deviations"]))
    )
    rows = found.with_columns(
        verdict=pl.lit("exposure"),
        why=pl.format(
            "{} of {} of {} came near its limit within one window, {} % against {} % before",
            number_of("near"),
            several_of("n", "success", "successes"),
            "engine",
            (pl.col("rate") * 100).round(1),
            (pl.col("expected") * 100).round(1),
        ),
    )
    return report(context, ID, rows)


def _example(early: list[int], late: list[int]) -> str:
    """One engine with a limit of 100 that answers a prompt of each length, some in one hour, some in the
    next."""
    lines = [
        '{"t":0,"seq":1,"source":"e/0","event":"engine.limits","engine":"e","input_limit_tokens":100}',
    ]
    moments = [*range(1, 1 + len(early)), *range(3600, 3600 + len(late))]
    for n, (t, length) in enumerate(zip(moments, early + late, strict=True), start=1):
        request = f'"request":"r{n}"'
        lines.append(
            f'{{"t":{t},"seq":{2 * n - 1},"source":"gateway","event":"request.received",{request},'
            f'"tenant":"t-a","prompt_tokens":{length}}}'
        )
        lines.append(
            f'{{"t":{t},"seq":{1 + n},"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[1],{request}}}'
        )
        lines.append(f'{{"t":{t},"seq":{2 * n},"source":"gateway","event":"request.finished",{request},"status":200}}')
    return "\n".join(lines) + "\n"


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
        Param("window_s", 3600.0, "length of a window", "s"),
        Param("min_window", 50, "successes that a window must have"),
        Param("min_baseline", 200, "successes that all windows before must have"),
        Param("min_near", 10, "successes near the limit that a window must have"),
        Param("deviations", 6.0, "how far above the expected rate, in standard deviations"),
    ),
    positive=Example(
        title="long prompts after an hour of short ones",
        verdict="exposure",
        trace=_example([20] * 200, [20] * 30 + [95] * 20),
    ),
    negative=Example(title="too few to compare", trace=_example([20] * 30, [95] * 30)),
)
