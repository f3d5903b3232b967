"""The statistics of the anomaly rules: exact where they can be, and honest on data that varies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.alerts import PLANTED, pages
from benchmarks.alerts import main as simulation
from kvwitness.audit.rules import RULES
from kvwitness.audit.rules._baseline import departures, params, tail

SETTINGS: dict[str, float | int | str] = {p.name: p.default for p in params()}
HOURS = 30 * 24
END_NS = (HOURS + 2) * 3600 * 10**9


def windows(k: Any, n: Any, engine: str = "e") -> pl.DataFrame:
    return pl.DataFrame({"engine": engine, "window": np.arange(len(k)), "n": n, "k": k}).cast(
        {"window": pl.Int64, "n": pl.Int64, "k": pl.Int64}
    )


def found(frame: pl.DataFrame, *, upper: bool = True, **changes: float) -> list[int]:
    rows = departures(frame, ["engine"], SETTINGS | changes, END_NS, upper=upper)
    return sorted(rows["window"].to_list())


@pytest.mark.parametrize(("k", "n", "a", "b"), [(3, 10, 0.7, 9.0), (0, 5, 1.0, 1.0), (40, 60, 2.0, 30.0)])
def test_tails_are_those_of_the_distribution(k: int, n: int, a: float, b: float) -> None:
    def beta(x: float, y: float) -> float:
        return math.gamma(x) * math.gamma(y) / math.gamma(x + y)

    each = [math.comb(n, j) * beta(j + a, n - j + b) / beta(a, b) for j in range(n + 1)]
    assert tail(k, n, a, b, upper=True) == pytest.approx(sum(each[k:]), rel=1e-9)
    assert tail(k, n, a, b, upper=False) == pytest.approx(sum(each[: k + 1]), rel=1e-9)
    assert sum(each) == pytest.approx(1.0)


def test_the_stated_rate_of_false_findings_holds_on_windows_that_vary_as_assumed() -> None:
    """A thousand subjects for 30 days at ten false findings a month: a few, and not more than stated."""
    rng = np.random.default_rng(7)
    frames = []
    for subject in range(300):
        n = rng.poisson(60, HOURS)
        rate = rng.beta(0.03 * 60, 0.97 * 60, HOURS)  # a spread of 1/61 beyond chance
        frames.append(windows(rng.binomial(n, rate), n, f"e{subject}"))
    rows = departures(pl.concat(frames), ["engine"], SETTINGS | {"false_alarms": 10.0}, END_NS, upper=True)
    assert len(rows) <= 10


def test_a_jump_is_found_in_its_first_window() -> None:
    rng = np.random.default_rng(1)
    n = rng.poisson(100, HOURS)
    rate = np.where(np.arange(HOURS) >= 500, 0.3, 0.02)
    hits = found(windows(rng.binomial(n, rate), n))
    assert hits[0] == 500


def test_a_busy_hour_of_every_day_is_usual() -> None:
    hour = np.arange(HOURS) % 24
    n = np.full(HOURS, 100)
    assert found(windows(np.where(hour == 3, 40, 1), n)) == []
    moved = np.where(hour == 3, 40, 1)
    moved[20 * 24 + 15] = 60
    assert found(windows(moved, n)) == [20 * 24 + 15]


def test_rates_that_fall_are_found_from_below() -> None:
    n = np.full(HOURS, 200)
    k = np.where(np.arange(HOURS) >= 600, 0, 20)
    assert found(windows(k, n), upper=False)[0] == 600
    assert found(windows(k, n)) == []


def test_what_comes_later_changes_nothing_of_before() -> None:
    rng = np.random.default_rng(3)
    n = rng.poisson(80, HOURS)
    k = rng.binomial(n, np.where(np.arange(HOURS) % 200 == 199, 0.4, 0.02))
    whole = found(windows(k, n))
    assert whole
    assert found(windows(k[:450], n[:450])) == [w for w in whole if w < 450]


def test_many_subjects_make_each_harder_to_convict() -> None:
    n = np.full(HOURS, 100)
    k = np.full(HOURS, 2)
    k[500] = 16
    one = departures(windows(k, n), ["engine"], SETTINGS | {"false_alarms": 0.5}, END_NS, upper=True)
    level = one["p"][0]
    usual = [windows(np.full(HOURS, 2), n, f"u{i}") for i in range(30)]
    settings = SETTINGS | {"false_alarms": float(level) * 720 * 1.5}
    assert len(departures(windows(k, n), ["engine"], settings, END_NS, upper=True)) == 1
    assert len(departures(pl.concat([windows(k, n), *usual]), ["engine"], settings, END_NS, upper=True)) == 0


def test_every_anomaly_rule_is_simulated() -> None:
    assert set(PLANTED) == {rule.id for rule in RULES.values() if rule.anomaly}


def test_findings_within_a_day_are_one_page() -> None:
    assert [pages([]), pages([1.0, 20.0, 40.0]), pages([1.0, 26.0])] == [0, 1, 2]


@pytest.mark.slow
def test_a_healthy_fleet_is_quiet_and_every_planted_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["alerts.py", "--fleets", "1", "--requests", "200"])
    assert simulation() == 0
