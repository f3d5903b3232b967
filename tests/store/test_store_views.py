"""The views: documented, stable, the same as what the audit itself derives, and never silently empty."""

from __future__ import annotations

import json
import os
from pathlib import Path

import duckdb
import polars as pl
import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.relations import requests
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store, views
from kvwitness.audit.store.catalog import RESERVED
from tests.store.support import events

CASES = Path(__file__).parents[1] / "cases"
PUBLISHED = Path(__file__).with_name("views-v1.json")
"""Columns and types as published under version 1: written once, then only added to."""
STUB = "k01-oversize-stub-handoff"


def stored(path: Path, *cases: str) -> Store:
    for case in cases:
        assert run(["import", str(CASES / f"{case}.jsonl"), "--store", str(path), "--quiet"]) == 0
    return Store.open(path)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = stored(tmp_path_factory.mktemp("views") / "store", STUB)
    audit_store(store)
    return store


def ask(store: Store, statement: str) -> list[tuple[object, ...]]:
    with store.connect() as con:
        return con.execute(statement).fetchall()


def columns(store: Store) -> dict[str, dict[str, str]]:
    """View -> column -> type, of everything in store.duckdb."""
    rows = ask(
        store,
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE database_name = 'store' AND NOT internal ORDER BY table_name, column_index",
    )
    found: dict[str, dict[str, str]] = {}
    for view, column, type_ in rows:
        found.setdefault(str(view), {})[str(column)] = str(type_)
    return found


@pytest.mark.parametrize("state", ["new", "audited"])
def test_every_view_and_column_says_what_it_means(tmp_path: Path, audited: Store, state: str) -> None:
    store = audited if state == "audited" else Store.create(tmp_path / "s")
    undocumented = ask(
        store,
        "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'store' AND NOT internal "
        "AND comment IS NULL UNION ALL "
        "SELECT view_name, '' FROM duckdb_views() WHERE database_name = 'store' AND NOT internal AND comment IS NULL "
        "UNION ALL SELECT table_name, '' FROM duckdb_tables() WHERE database_name = 'store' AND comment IS NULL "
        "UNION ALL SELECT function_name, '()' FROM duckdb_functions() WHERE database_name = 'store' "
        "AND function_type = 'table_macro' AND NOT internal AND comment IS NULL",
    )
    assert undocumented == []


def test_a_view_documents_its_columns_in_their_order(audited: Store) -> None:
    found = columns(audited)
    for view in (*views.DERIVED, *views.RESULTS, *views.OF_ALERTS):
        assert list(view.comments()) == list(found[view.name]), view.name


def test_published_columns_keep_their_names_and_types(audited: Store) -> None:
    """A failure here is a breaking change: see `kvwitness.audit.store.views`."""
    assert views.VERSION == 1
    found = columns(audited)
    if os.environ.get("KVW_PUBLISH_VIEWS"):  # after adding a view or column
        PUBLISHED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    for view, kept in json.loads(PUBLISHED.read_text()).items():
        assert {name: found[view].get(name) for name in kept} == kept, view


def test_views_have_the_same_columns_before_the_first_audit(tmp_path: Path, audited: Store) -> None:
    assert columns(Store.create(tmp_path / "s")) == columns(audited)


def test_times_stand_beside_a_timestamp(audited: Store) -> None:
    by_type = {"BIGINT": "_ns", "TIMESTAMP_NS": "_ts"}
    for view in (*views.DERIVED, *views.RESULTS, *views.OF_ALERTS):
        found = columns(audited)[view.name]
        for name in found:
            if name.endswith("_ns") and name != "at_ns":
                stamp = "ts" if name == "time_ns" else name.removesuffix("_ns") + "_ts"
                assert (found[name], found.get(stamp)) == (next(iter(by_type)), "TIMESTAMP_NS"), f"{view.name}.{name}"


def test_results_of_no_audit_fail_when_they_are_read(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", STUB)
    for view in views.RESULTS:
        statements = [f"SELECT * FROM {view.name}", f"SELECT count(*) FROM {view.name}"]
        statements += [f"SELECT 1 FROM {view.name} WHERE {name} IS NOT NULL" for name in view.columns]
        for statement in statements:
            if view.loud:
                with pytest.raises(duckdb.Error, match="run `kvwitness audit`"):
                    ask(store, statement)
            else:
                assert ask(store, statement) in ([], [(0,)])
    with pytest.raises(duckdb.Error, match="run `kvwitness audit`"):
        ask(store, "SELECT soundness FROM reads")


def test_a_result_of_an_older_version_lacks_columns_and_tables(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    store.put_result(
        "run-1", {"findings": pl.DataFrame({"rule": ["a"], "later": [1]}), "further": pl.DataFrame({"x": [1]})}
    )
    assert ask(store, "SELECT rule, verdict, later FROM findings") == [("a", None, 1)]
    assert ask(store, "SELECT x FROM further") == [(1,)]
    with pytest.raises(duckdb.Error, match="read_causes: run `kvwitness audit`"):
        ask(store, "FROM read_causes")


def test_results_cannot_take_the_name_of_a_view() -> None:
    assert {view.name for view in (*views.DERIVED, *views.OF_ALERTS)} <= RESERVED


@pytest.mark.parametrize("case", sorted(p.stem for p in CASES.glob("*.jsonl")))
def test_requests_are_those_that_the_audit_starts_from(tmp_path: Path, case: str) -> None:
    store = stored(tmp_path / "s", case)
    frame = store.events().collect()
    relation = requests(ordered(frame).lazy())
    named = relation.filter(
        pl.any_horizontal(pl.col("received_ev", "rejected_ev", "aborted_ev", "finished_ev").is_not_null())
    )
    same = ["request", "incarnation", "traffic", "model", "adapter", "salt_hmac", "prompt_tokens", "max_new_tokens"]
    same += ["received_source", "status", "finish_reason", "answered_by", "answered_prompt_tokens", "cached_tokens"]
    same += ["completion_tokens", "ok", "rejected_source", "aborted_source"]
    expected = named.select(same).sort("request", "incarnation").rows()
    assert ask(store, f"SELECT {', '.join(same)} FROM requests ORDER BY request, incarnation") == expected
    tenants = dict(named.filter(pl.col("received_ev").is_not_null()).select("request", "tenant").iter_rows())
    told = ask(store, "SELECT request, tenant FROM requests WHERE received_ns IS NOT NULL AND incarnation = 0")
    assert all(tenants[str(request)] == tenant for request, tenant in told if request in tenants)
    ids = relation["request"].to_list()[:3]
    with store.connect() as con:
        some = con.execute("SELECT count(*) FROM requests_of($1)", [ids]).fetchall()
        of_all = con.execute("SELECT count(*) FROM requests WHERE list_contains($1, request)", [ids]).fetchall()
        moved = con.execute("SELECT * FROM transfers_of($1) ORDER BY ALL", [ids]).fetchall()
        of_all_moved = con.execute("SELECT * FROM transfers WHERE list_contains($1, request) ORDER BY ALL", [ids])
        assert moved == of_all_moved.fetchall()
    assert some == of_all


@pytest.mark.parametrize("statement", ["FROM requests_of(['r1003'])", "FROM transfers_of(['r1003'])"])
@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_asked_for_narrows_what_is_read(tmp_path: Path, statement: str, sealed: bool) -> None:
    """The ids that are wanted go into the hash table and prune the scan, not all the events of the store."""
    store = stored(tmp_path / "s", STUB, "f01-common-system-prompt")
    if sealed:
        store.compact(grace_s=0)
    plan = str(ask(store, f"EXPLAIN {statement}"))
    assert "SEMI" in plan
    assert "RIGHT_SEMI" not in plan


def test_coverage_counts_what_each_source_told(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", STUB)
    audit_store(store)
    with store.writer("late") as writer:
        writer.append(events(3, 5, source="e/0"))
        writer.append(events(2, source=None))
        writer.append(events(1, source=""))
    frame = store.events().collect()
    told = ask(store, "SELECT source, site, events, first_ns, last_ns, min_seq, max_seq, unjudged FROM coverage")
    expected = [
        (
            source,
            source.split("/")[0],
            len(rows),
            rows["time_ns"].min(),
            rows["time_ns"].max(),
            rows["seq"].min(),
            rows["seq"].max(),
            len(rows) if source in ("", "e/0") else 0,
        )
        for (source,), rows in frame.with_columns(pl.col("source").fill_null("")).group_by("source")
    ]
    assert sorted(told) == sorted(expected)
    assert dict(ask(store, "SELECT source, missing FROM coverage"))["e/0"] == 4


def test_limits_in_force_carry_figures_on(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    table = events(3, source="e/0", tenant=None, event="engine.limits", engine=["e"] * 3, role=["unified", None, None],
                   input_limit_tokens=[100, None, 50], version=["1", "2", None])  # fmt: skip
    with store.writer("w") as writer:
        writer.append(table)
    rows = ask(store, "SELECT seq, role, input_limit_tokens, version, until_ns - time_ns FROM limits ORDER BY seq")
    assert rows == [
        (0, "unified", 100, "1", 1_000_000),
        (1, "unified", 100, "2", 1_000_000),
        (2, "unified", 50, "2", None),
    ]


def test_reads_since_the_audit_are_not_called_sound(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", STUB)
    audit_store(store)
    assert ask(store, "SELECT request, soundness, unsound_pages FROM reads ORDER BY request") == [
        ("r1001", "sound", 0), ("r1002", "sound", 0), ("r1003", "unwritten", 4453),
    ]  # fmt: skip
    with store.writer("late") as writer:
        writer.append(events(1, 50))
    assert ask(store, "SELECT soundness FROM reads WHERE request LIKE 'alice%'") == [(None,)]
    assert ask(store, "SELECT sum(unjudged) FROM coverage") == [(1,)]
    store.compact(grace_s=0)
    assert ask(store, "SELECT soundness, count(*) FROM reads GROUP BY 1 ORDER BY 1 NULLS LAST") == [
        ("sound", 2), ("unwritten", 1), (None, 1),
    ]  # fmt: skip


def test_an_audit_in_pieces_keeps_the_same_of_reads_and_losses(tmp_path: Path) -> None:
    cases = ("u01-hole-hides-the-write", STUB, "f01-common-system-prompt")
    whole, pieces = stored(tmp_path / "whole", *cases), stored(tmp_path / "pieces", cases[0])
    for case in cases[1:]:
        audit_store(pieces)
        stored(tmp_path / "pieces", case)
    audit_store(whole)
    audit_store(pieces)
    for table in ("read_causes", "unsound_reads", "gaps"):
        kept = [sorted(map(repr, store.result(table).rows())) for store in (whole, pieces)]
        assert kept[0] or table == "gaps"
        assert kept[0] == kept[1]


def test_page_history_counts_generations(audited: Store) -> None:
    rows = ask(
        audited,
        "SELECT generation, event, role FROM page_history WHERE pool = 'dec-1/0/full' AND page = 17 "
        "ORDER BY at_ns, seq",
    )
    assert [row[0] for row in rows] == [1] * 5 + [2] * 3
    assert ("transfer.begin", "destination") in {row[1:] for row in rows}


def test_a_catalog_with_older_views_is_published_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "s")
    with monkeypatch.context() as older:
        older.setattr("kvwitness.audit.store.catalog._fingerprint", lambda: "older")
        store.publish()
    generation = store.generation
    assert ask(store, "SELECT value FROM manifest WHERE key = 'views'") != [("older",)]
    assert store.generation == generation


def test_views_of_a_newer_version_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "s")
    with monkeypatch.context() as newer:
        newer.setattr("kvwitness.audit.store.catalog._fingerprint", lambda: "newer")
        newer.setattr("kvwitness.audit.store.views.VERSION", 2)
        store.publish()
    assert ask(store, "SELECT value FROM manifest WHERE key = 'views'") == [("newer",)]


def test_older_views_answer_where_nothing_can_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvwitness.audit.store import ReadOnlyDisk

    store = Store.create(tmp_path / "s")
    monkeypatch.setattr("kvwitness.audit.store.catalog._fingerprint", lambda: "another")

    def refuse(*_: object) -> None:
        raise ReadOnlyDisk("read-only", "")

    monkeypatch.setattr("kvwitness.audit.store.transaction.publish", refuse)
    assert ask(store, "SELECT count(*) FROM events") == [(0,)]


def test_a_retired_view_stays_under_its_old_version() -> None:
    assert all(f"_v{views.VERSION - 1}" in view.name for view in views.RETIRED)
    with duckdb.connect() as con:
        views.create(con, [views.View("requests_v0", "As it was.", "SELECT 1 AS request", {"request": ""})], [])
        assert con.execute("SELECT request FROM requests_v0").fetchall() == [(1,)]
