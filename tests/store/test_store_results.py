"""Results of audits: whole runs or none."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.store import Store, StoreError
from tests.store.support import assert_whole, events, flip


def tables(n: int) -> dict[str, pl.DataFrame]:
    return {
        "findings": pl.DataFrame(
            {"rule": ["a"] * n, "pages": [[1, 2]] * n, "tenants": [["x"]] * n, "time_ns": [5] * n},
            schema={
                "rule": pl.String,
                "pages": pl.List(pl.UInt32),
                "tenants": pl.List(pl.String),
                "time_ns": pl.Int64,
            },
        ),
        "runs": pl.DataFrame({"run": [n]}),
    }


def test_results_come_back_with_their_types(store: Store) -> None:
    store.put_result("run-1", tables(2))
    assert store.result("findings").equals(tables(2)["findings"])
    assert store.result("findings").schema == tables(2)["findings"].schema
    with store.reader() as reader:
        assert reader.query("SELECT count(*) AS n FROM findings").item() == 2
        store.put_result("run-2", tables(0))  # the newest has no findings: the view is empty, not the older run's
        assert reader.query("SELECT count(*) AS n FROM findings").item() == 0
        assert reader.query("SELECT run_id FROM result_runs WHERE newest AND table_name = 'runs'").item() == "run-2"
    assert store.result("findings", run_id="run-1").height == 2
    assert_whole(store)


def test_a_connection_from_before_sees_one_whole_run(store: Store) -> None:
    store.put_result("run-1", tables(2))
    with store.connect() as con:
        store.put_result("run-2", tables(3))
        assert con.execute("SELECT (SELECT count(*) FROM findings), (SELECT max(run) FROM runs)").fetchone() == (2, 2)
    with store.connect() as con:
        assert con.execute("SELECT (SELECT count(*) FROM findings), (SELECT max(run) FROM runs)").fetchone() == (3, 3)


def test_the_same_run_again_replaces_it(store: Store) -> None:
    store.put_result("run-1", tables(1))
    store.put_result("run-1", tables(2))
    assert store.result("findings", run_id="run-1").height == 2


def test_old_runs_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.store.results.KEPT_RUNS", 3)
    for n in range(5):
        store.put_result(f"run-{n}", tables(1))
    assert [r.run_id for r in store.result_runs()] == [f"run-{n}" for n in range(2, 5)]
    with pytest.raises(StoreError, match="no results of run 'run-0'"):
        store.result("findings", run_id="run-0")
    assert_whole(store)


def test_no_results_yet(store: Store) -> None:
    with pytest.raises(StoreError, match="no results"):
        store.result("findings")
    store.put_result("run-1", tables(1))
    with pytest.raises(StoreError, match="no table 'requests'"):
        store.result("requests")


@pytest.mark.parametrize("name", ["events", "segments", "Findings", "a b", "x;drop", ""])
def test_names_are_checked(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match="cannot name a table"):
        store.put_result("run", {name: pl.DataFrame({"a": [1]})})


@pytest.mark.parametrize("run", ["", "../x", "a/b", "-x"])
def test_run_names_are_checked(store: Store, run: str) -> None:
    with pytest.raises(StoreError, match="cannot name an audit run"):
        store.put_result(run, tables(1))


def test_damaged_results_are_found(store: Store) -> None:
    store.put_result("run-1", tables(2))
    (path,) = Path(store.path / "results").glob("*/findings.parquet")
    flip(path, 40)
    (problem,) = store.verify()
    assert (problem.kind, problem.severity) == ("results", "error")
    assert "findings.parquet" in problem.message


def test_checkpoints_have_a_place(store: Store) -> None:
    (store.checkpoint_dir / "pool-a").write_bytes(b"state")
    with store.writer("w") as writer:
        writer.append(events(3))
    assert_whole(store)
    assert (store.checkpoint_dir / "pool-a").read_bytes() == b"state"
