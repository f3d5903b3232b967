"""The lengths of prompts are distributed in another way than before."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import SECOND_NS, acting_engine, report
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict
from kvwitness.audit.wording import number_of, several_of

ID = "prompt-length-shift"


def _lengths(context: Context) -> pl.DataFrame:
    """Prompt lengths by subject: each tenant and each engine that gave pages; `bucket` is a power of two."""
    measured = context.requests.filter(
        (pl.col("traffic") == "user") & (pl.col("prompt_tokens") > 0) & pl.col("received_ns").is_not_null()
    )
    measured = measured.with_columns(bucket=pl.col("prompt_tokens").log(2).floor().cast(pl.Int64))
    columns = ["tenant", "engine", "bucket", "received_ns", "received_ev"]
    none = pl.lit(None, pl.String)
    by_tenant = measured.filter(pl.col("tenant").is_not_null()).with_columns(engine=none)
    given = keyed(context.events.filter(pl.col("event") == "page.alloc"))
    served = given.select(*KEY, engine=acting_engine(context)).unique().collect()
    by_engine = measured.join(served, on=KEY).with_columns(tenant=none)
    return pl.concat([by_tenant.select(columns), by_engine.select(columns)])


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Measure how far each window's histogram lies from that of all windows before (stability index)."""
    subject = ["tenant", "engine"]
    window_ns = int(float(settings["window_s"]) * SECOND_NS)
    rows = _lengths(context).with_columns(window=pl.col("received_ns") // window_ns)
    sizes = rows.sort("window").group_by(*subject, "window", maintain_order=True).agg(n=pl.len())
    sizes = sizes.with_columns(base_n=pl.col("n").cum_sum().over(subject) - pl.col("n"))
    judged = sizes.filter(
        (pl.col("n") >= int(settings["min_window"])) & (pl.col("base_n") >= int(settings["min_baseline"]))
    )
    buckets = rows.select(*subject, "bucket").unique()
    counts = rows.group_by(*subject, "window", "bucket").agg(k=pl.len())
    grid = sizes.join(buckets, on=subject, nulls_equal=True).join(
        counts, on=[*subject, "window", "bucket"], how="left", nulls_equal=True
    )
    key = [*subject, "bucket"]
    grid = grid.sort("window").with_columns(pl.col("k").fill_null(0))
    grid = grid.with_columns(base_k=pl.col("k").cum_sum().over(key) - pl.col("k"))
    now = (pl.col("k") + 0.5) / (pl.col("n") + 0.5)
    before = (pl.col("base_k") + 0.5) / (pl.col("base_n") + 0.5)
    distance = ((now - before) * (now / before).log()).sum()
    per_window = grid.group_by(*subject, "window").agg(distance=distance)
    found = judged.join(per_window, on=[*subject, "window"], nulls_equal=True).filter(
        pl.col("distance") >= float(settings["distance"])
    )
    proof = rows.sort("received_ev").group_by(*subject, "window").agg(evs=pl.col("received_ev").head(20))
    rows = found.join(proof, on=[*subject, "window"], nulls_equal=True).with_columns(
        verdict=pl.lit("exposure"),
        why=pl.format(
            "the lengths of {} of {} lie {} from those of the {} before",
            several_of("n", "prompt"),
            pl.coalesce(subject),
            pl.col("distance").round(2),
            number_of("base_n"),
        ),
    )
    return report(context, ID, rows.sort("window"))


def _example(early: list[int], late: list[int]) -> str:
    """One tenant that sends a prompt of each length, some on one day, some on the next."""
    moments = [*range(1, 1 + len(early)), *range(86400, 86400 + len(late))]
    return "".join(
        f'{{"t":{t},"seq":{n},"source":"gateway","event":"request.received","request":"r{n}",'
        f'"tenant":"t-a","prompt_tokens":{length}}}\n'
        for n, (t, length) in enumerate(zip(moments, early + late, strict=True), start=1)
    )


RULE = Rule(
    id=ID,
    title="Prompt lengths moved away from their baseline",
    verdicts=(Verdict.EXPOSURE,),
    severity="low",
    meaning=(
        "The prompts that a tenant sent, or an engine served, in one window are distributed over lengths "
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
    params=(
        Param("window_s", 86400.0, "length of a window", "s"),
        Param("min_window", 200, "prompts that a window must have"),
        Param("min_baseline", 500, "prompts that all windows before must have"),
        Param("distance", 1.0, "population stability index; 0.25 is commonly called a large change"),
    ),
    positive=Example(
        title="a day of long prompts after a day of short ones",
        verdict="exposure",
        trace=_example([100] * 500, [9000] * 200),
    ),
    negative=Example(title="two days of the same mixture", trace=_example([100, 400, 900] * 200, [100, 400, 900] * 80)),
)
