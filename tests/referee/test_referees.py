"""Three independent formulations of one simplified rule agree with each other and with planted reads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from benchmarks.pools import Plan, Simulation, explode, mean_run
from kvwitness.audit.pipeline import judge
from tests.referee import duckdb_rule, numba_min, polars_rule
from tests.referee.exploded import ALLOC, READ, SCHEMA, SHARE, WRITE, exploded

SMALL = Plan(page_events=200_000, pool_pages=8_000, max_pages=400, seed=7, shares=0.3, transfers=0.2, violations=24)
REFEREES = {
    "polars": lambda events: polars_rule.flagged(events.lazy()),
    "duckdb": duckdb_rule.flagged,
    "numba": numba_min.flagged,
}


@cache
def simulated() -> tuple[pl.DataFrame, frozenset[tuple[int, int]]]:
    """A trace with planted reads, exploded, and (ev, slot) of those reads."""
    simulation = Simulation(SMALL, rows=4_000)
    parts = [explode(chunk, simulation.tenant_of) for chunk in simulation.chunks()]
    events = pl.concat([pl.DataFrame(part, schema=SCHEMA) for part in parts])
    planted = simulation.planted
    assert len(planted) == SMALL.violations
    assert {p.rule for p in planted} == {"unwritten-page-read", "foreign-page-read"}
    return events, frozenset((p.row, (int(p.pool[4:].split("/")[0]) - 1) << 32 | p.page) for p in planted)


def pairs(frame: pl.DataFrame) -> set[tuple[int, int]]:
    return set(frame.select("ev", "slot").iter_rows())


@pytest.mark.parametrize("name", REFEREES)
def test_planted_reads_and_no_others_are_flagged(name: str) -> None:
    events, planted = simulated()
    assert len(events) > 100_000
    assert pairs(REFEREES[name](events)) == planted


@pytest.mark.parametrize("seed", range(4))
def test_referees_agree_on_disorder(seed: int) -> None:
    """Reads without alloc, writes by anyone, shares of dead pages: all three say the same."""
    rng = np.random.default_rng(seed)
    n, requests = 5_000, 9
    request = rng.integers(0, requests, n)
    events = pl.DataFrame(
        {
            "ev": np.arange(n) * 3,
            "slot": rng.integers(0, 2, n) << 32 | rng.integers(0, 60, n),
            "act": rng.choice([ALLOC, WRITE, READ, SHARE], n, p=[0.15, 0.25, 0.45, 0.15]),
            "request": request,
            "tenant": np.arange(requests)[request] % 3,
        },
        schema=SCHEMA,
    )
    verdicts = {name: pairs(flagged(events)) for name, flagged in REFEREES.items()}
    assert 100 < len(verdicts["polars"]) < n
    assert verdicts["polars"] == verdicts["duckdb"] == verdicts["numba"]


def test_event_schema_explodes_to_the_same_rows() -> None:
    """The simulation's own explosion and the one from the event schema see the same trace."""
    events, planted = simulated()
    simulation = Simulation(SMALL, rows=4_000)
    table = pl.from_arrow(pa.Table.from_batches(list(simulation.batches())))
    again = exploded(table)
    columns = ["ev", "slot", "act"]
    assert again.select(columns).equals(events.select(columns))
    assert pairs(polars_rule.flagged(again.lazy())) == planted


def test_product_finds_planted_reads_and_clears_the_rest() -> None:
    """The whole audit names every planted read, and nobody whom no planted read touched."""
    simulation = Simulation(SMALL)
    judged = judge(pl.from_arrow(pa.Table.from_batches(list(simulation.batches()))))
    planted = {(p.rule, p.request, p.source, p.seq) for p in simulation.planted}
    told = judged.findings.explode("seqs").unnest("seqs")
    assert planted <= set(told.select("rule", "request", "source", "seq").iter_rows())
    assert set(judged.findings["request"]) == {p.request for p in simulation.planted}


def test_product_finds_nothing_in_health() -> None:
    simulation = Simulation(replace(SMALL, violations=0))
    judged = judge(pl.from_arrow(pa.Table.from_batches(list(simulation.batches()))))
    assert judged.findings.is_empty()
    assert set(judged.requests["verdict"]) == {"clean", "shared"}


def test_same_plan_same_trace_and_pools_are_aged() -> None:
    plans = (SMALL, SMALL, replace(SMALL, seed=8))
    first, second, other = (list(Simulation(plan, rows=4_000).chunks()) for plan in plans)
    assert all(np.array_equal(a.pages, b.pages) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0].pages, other[0].pages)
    assert mean_run(first[0]) < 1.1
