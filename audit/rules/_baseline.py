"""Rates per window, compared with what they were before: the statistics of all anomaly rules that count.

**What is assumed.** In each window of a subject (an engine, a tenant) `k` of `n` cases are hits. The rate differs
from window to window more than chance alone would have it: by hour of the day, and by how customers work. So `k` is
taken for beta-binomial. Its mean is the rate of the same hour on all days before, drawn towards the rate of all windows
before as long as that hour has few cases. Its spread is estimated from how far the windows before lay from what was
expected of them (the mean of Pearson's statistic), widened by 30 %, and by what few cases leave open about the mean.
Nothing of the window itself, or after it, goes into its baseline.

**What is promised.** A window is reported where so many hits (or so few) have a probability of at most
`false_alarms` x window / (30 days x number of subjects): if windows go on varying as they did, all subjects together
give `false_alarms` false findings in 30 days. The rate must besides be `factor` times what was expected (or 1/`factor`
of it), so that what is certain and small stays unsaid. A window counts when it is over, and `late_s` more for late
events. A subject is judged when its record is `history_s` long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lgamma

import numpy as np
import numpy.typing as npt
import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import SECOND_NS, acting_engine, report
from kvwitness.audit.rules.model import Context, Param
from kvwitness.audit.wording import number_of

Settings = Mapping[str, float | int | str]

F64 = npt.NDArray[np.float64]

_DAY_S, _MONTH_S = 86_400.0, 30 * 86_400.0
_DRAWN, _DRAWN_HITS = 50.0, 10.0
"""Cases, and expected hits, that an hour must have had to weigh as much as all hours."""
_WIDENED = 1.3
_FEW_WINDOWS, _SPREAD_OF_FEW = 8, 0.02
_SUSPICIOUS = 2.0
"""Standard deviations below which no exact probability is computed."""
_PROVEN_BY = 20


def params(
    *,
    window_s: float = 3600.0,
    history_s: float = 7 * _DAY_S,
    min_window: int = 20,
    min_baseline: int = 500,
    min_hits: int = 6,
    factor: float = 2.0,
    cases: str = "cases",
    hits: str = "hits",
) -> tuple[Param, ...]:
    """The parameters that these rules share."""
    return (
        Param("window_s", window_s, "length of a window", "s"),
        Param("history_s", history_s, "how long a record must be before it is judged", "s"),
        Param("min_window", min_window, f"{cases} that a window must have"),
        Param("min_baseline", min_baseline, f"{cases} that all windows before must have"),
        Param("min_hits", min_hits, f"{hits} that a window must have (or would have been expected in it)"),
        Param("factor", factor, "how many times the expected rate"),
        Param("false_alarms", 0.1, "false findings in 30 days that are accepted, over all engines and tenants"),
        Param("late_s", 300.0, "how long after its end a window waits for late events", "s"),
    )


def serving(context: Context) -> pl.DataFrame:
    """request, incarnation, engine: the engines that gave each request pages; else the one that answered it, else
    whoever recorded the answer."""
    given = keyed(context.acts.filter(pl.col("event") == "page.alloc"))
    by_pages = given.select(*KEY, engine=acting_engine(context)).unique().collect()
    answered = keyed(context.events.filter(pl.col("event") == "request.finished"))
    named = answered.select(*KEY, engine=pl.coalesce("answered_by", "site")).unique(KEY, keep="last").collect()
    return pl.concat([by_pages, named.join(by_pages, on=KEY, how="anti").select(by_pages.columns)])


def rate_findings(
    context: Context,
    rule: str,
    cases: pl.DataFrame,
    settings: Settings,
    *,
    subject: Sequence[str],
    why: pl.Expr,
    upper: bool = True,
    by: Sequence[str] = (),
    only: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Findings of windows whose rate departs from its baseline.

    `cases` has the columns of `subject` and `by`, `at_ns`, `hit` and `ev`. Rates are judged per `subject` and `by`; of
    several `by` of one subject and window the least probable is reported. `why` may use `k`, `n`, `rate`, `expected`
    (in per cent, rounded) and the columns of `subject` and `by`. `only` (with `window`) restricts what is reported.
    """
    if cases.is_empty():
        return report(context, rule, pl.DataFrame())
    window_ns = int(float(settings["window_s"]) * SECOND_NS)
    rows = cases.with_columns(window=pl.col("at_ns") // window_ns)
    key = [*subject, *by]
    counted = rows.group_by(*key, "window").agg(n=pl.len().cast(pl.Int64), k=pl.col("hit").sum().cast(pl.Int64))
    found = departures(counted, key, settings, context.horizon_ns, upper=upper)
    if only is not None:
        found = found.join(only, on="window", how="semi")
    found = found.sort("p").unique([*subject, "window"], keep="first", maintain_order=True).sort("window", *key)
    proof = rows.filter(pl.col("hit")) if upper else rows
    proof = proof.sort("ev").group_by(*key, "window").agg(evs=pl.col("ev").drop_nulls().head(_PROVEN_BY))
    told = found.join(proof, on=[*key, "window"], how="left", nulls_equal=True, maintain_order="left").with_columns(
        pl.col("evs").fill_null([]),
        # Where nothing happened any more, nothing proves it but the window itself.
        time_ns=pl.col("window") * window_ns,
        verdict=pl.lit("exposure"),
        rate=(pl.col("rate") * 100).round(1),
        expected=(pl.col("expected") * 100).round(1),
    )
    return report(context, rule, told.with_columns(why=why))


def said(cases: str, hits: str) -> pl.Expr:
    """`12 of 300 CASES HITS within one window, 4.0 % against 1.0 % before`."""
    return pl.format(
        f"{{}} of {{}} {cases} {hits} within one window, {{}} % against {{}} % before",
        number_of("k"),
        number_of("n"),
        "rate",
        "expected",
    )


def departures(
    counted: pl.DataFrame, key: Sequence[str], settings: Settings, horizon_ns: int, *, upper: bool
) -> pl.DataFrame:
    """The windows of `counted` (columns of `key`, `window`, `n`, `k`) that depart, with `rate`, `expected` and `p`."""
    judged = _with_baseline(counted, list(key), float(settings["window_s"]))
    over = (pl.col("window") + 1) * int(float(settings["window_s"]) * SECOND_NS)
    late = int(float(settings["late_s"]) * SECOND_NS)
    expected, factor = pl.col("expected"), float(settings["factor"])
    deviation = (pl.col("k") - pl.col("n") * expected) / (pl.col("n") * expected * (1 - expected)).sqrt()
    if upper:
        large = (pl.col("k") >= int(settings["min_hits"])) & (pl.col("rate") >= factor * expected)
    else:
        large = (pl.col("n") * expected >= int(settings["min_hits"])) & (pl.col("rate") * factor <= expected)
    candidates = judged.filter(
        (over + late <= horizon_ns)
        & (pl.col("age") * float(settings["window_s"]) >= float(settings["history_s"]))
        & (pl.col("n") >= int(settings["min_window"]))
        & (pl.col("base_n") >= int(settings["min_baseline"]))
        & large
        & ((deviation if upper else -deviation) >= _SUSPICIOUS)
    )
    subjects = counted.select(key).n_unique()
    level = float(settings["false_alarms"]) * float(settings["window_s"]) / _MONTH_S / max(1, subjects)
    sure = [
        tail(k, n, mean * spread, (1 - mean) * spread, upper=upper)
        for k, n, mean, spread in candidates.select("k", "n", "expected", "concentration").iter_rows()
    ]
    return candidates.with_columns(p=pl.Series(sure, dtype=pl.Float64)).filter(pl.col("p") <= level)


def _with_baseline(counted: pl.DataFrame, key: list[str], window_s: float) -> pl.DataFrame:
    """Add to each window what those before it say: `base_n`, `expected`, `concentration`; and `age` in windows."""
    per_day = max(1, int(_DAY_S // window_s))
    n, k = pl.col("n"), pl.col("k")
    of_hour = [*key, "hour"]
    rows = counted.with_columns(hour=pl.col("window") % per_day).sort("window")
    rows = rows.with_columns(
        age=pl.col("window") - pl.col("window").min().over(key),
        base_n=n.cum_sum().over(key) - n,
        base_k=k.cum_sum().over(key) - k,
        hour_n=n.cum_sum().over(of_hour) - n,
        hour_k=k.cum_sum().over(of_hour) - k,
    )
    usual = (pl.col("base_k") + 0.5) / (pl.col("base_n") + 1.0)
    # An hour weighs as much as all hours once it has had so many cases, and would have had so many hits.
    drawn = pl.max_horizontal(pl.lit(_DRAWN), _DRAWN_HITS / usual)
    mean = (pl.col("hour_k") + drawn * usual) / (pl.col("hour_n") + drawn)
    rows = rows.with_columns(rate=k / n, expected=mean.clip(1e-9, 1 - 1e-9))
    # How far each window lay from what was expected of it, where that could be known.
    expected, known = pl.col("expected"), pl.col("hour_n") >= _DRAWN
    missed = pl.when(known).then((k - n * expected) ** 2 / (n * expected * (1 - expected))).otherwise(0.0)
    size = pl.when(known).then(n).otherwise(0)
    rows = rows.with_columns(
        seen=known.cast(pl.Int64).cum_sum().over(key) - known.cast(pl.Int64),
        seen_n=size.cum_sum().over(key) - size,
        missed=missed.cum_sum().over(key) - missed,
    )
    beyond = (pl.col("missed") / pl.col("seen") - 1) / (pl.col("seen_n") / pl.col("seen") - 1)
    enough = (pl.col("seen") >= _FEW_WINDOWS) & beyond.is_finite()
    spread = pl.when(enough).then(beyond.clip(0.0, 0.5) * _WIDENED).otherwise(_SPREAD_OF_FEW)
    return rows.with_columns(concentration=1.0 / (spread + 1.0 / (pl.col("hour_n") + drawn)))


def tail(k: int, n: int, a: float, b: float, *, upper: bool) -> float:
    """The probability of `k` or more (`upper`), or `k` or fewer, of `n` under a beta-binomial distribution."""
    j = np.arange(k, n + 1.0) if upper else np.arange(0.0, k + 1)
    chosen = lgamma(n + 1) - _log_gamma(j + 1) - _log_gamma(n - j + 1)
    met = _log_gamma(j + a) + _log_gamma(n - j + b) - lgamma(n + a + b)
    usual = lgamma(a) + lgamma(b) - lgamma(a + b)
    return float(min(1.0, np.exp(chosen + met - usual).sum()))


def _log_gamma(values: F64) -> F64:
    return np.array([lgamma(value) for value in values.tolist()])
