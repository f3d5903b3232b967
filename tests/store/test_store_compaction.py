"""Compaction: the same rows in fewer files, and old readers told, never given less."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

from kvwitness.audit.store import Store, StoreBusy, StoreError, compaction, reader, snapshot
from kvwitness.audit.store.compaction import plan
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest
from kvwitness.audit.store.transaction import maintenance_lock
from tests.store.support import assert_whole, events, flip, seqs, sha, sql_count


def fill(store: Store, flushes: int, rows: int = 10, *, first: int = 0, name: str = "w") -> None:
    with store.writer(name) as writer:
        for n in range(flushes):
            writer.append(events(rows, first + n * rows))
            writer.flush()


def test_compaction_keeps_every_row_and_its_order(store: Store) -> None:
    fill(store, 6)
    store.import_batches(iter([events(20, 0, source="other")]), sha256=sha("f"))
    before = store.events().sort("ingest", "ingest_row").collect()
    done = store.compact(grace_s=0)
    assert (done.merged, done.into, done.rows, done.files_removed, done.damaged) == (7, 1, 80, 7, ())
    (segment,) = store.segments()
    assert segment.sealed
    assert store.events().collect().equals(before, null_equal=True)  # stored in order of arrival
    assert done.bytes_after < done.bytes_before
    assert store.compact(grace_s=0).merged == 0
    assert_whole(store)


def test_old_files_stay_for_the_grace_period(store: Store) -> None:
    fill(store, 3)
    snapshot = store.snapshot()
    lazy = snapshot.events(["seq"])
    store.compact(grace_s=3600)
    assert lazy.collect().height == 30
    assert len(list((store.path / "flushed").glob("*/*/ev-w-*"))) == 3
    assert sql_count(store) == 30
    assert store.info()["waiting_for_removal"] == 1  # a whole folder
    fill(store, 2, first=30)
    assert store.compact(grace_s=3600).rows == 50  # the retired files are not merged a second time
    assert seqs(store) == list(range(50))
    assert_whole(store)


def test_a_snapshot_whose_files_are_gone_fails_and_says_so(store: Store) -> None:
    fill(store, 3)
    lazy = store.events(["seq"])
    store.compact(grace_s=0)
    with pytest.raises(StoreError, match="removed meanwhile"), store.reading():
        lazy.collect()


def test_removal_waits_for_grace_then_locks_out_then_waits_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.time_ns()
    seconds = 0
    monkeypatch.setattr("kvwitness.audit.store.expiry.time.time_ns", lambda: begun + seconds * 10**9)
    fill(store, 3)
    con = store.connect()
    count = "SELECT count(*) FROM events"
    store.compact(grace_s=30)
    seconds = 29
    assert store.compact().files_removed == 0
    assert con.execute(count).fetchone() == (30,)
    seconds = 31  # the grace is over: readers from before are locked out, the files go when these have settled
    assert store.compact().files_removed == 0
    with pytest.raises(duckdb.IOException, match=r"was-replaced--please-reopen-store\.duckdb"):
        con.execute(count).fetchone()
    seconds = 60
    assert store.compact().files_removed == 0
    seconds = 61
    assert store.compact().files_removed == 3
    assert sql_count(store) == 30
    assert_whole(store)


def test_an_open_connection_sees_new_segments_and_imports_at_once(store: Store) -> None:
    with store.connect() as con:
        fill(store, 2)
        assert con.execute("SELECT count(*) FROM events").fetchone() == (20,)
        store.import_batches(iter([events(5, 20)]), sha256=sha("f"))
        assert con.execute("SELECT count(*) FROM events").fetchone() == (25,)
        assert con.execute("SELECT kind, sum(rows)::INT FROM segments GROUP BY 1 ORDER BY 1").fetchall() == [
            ("import", 5),
            ("live", 20),
        ]


def test_reader_follows_compactions(store: Store) -> None:
    fill(store, 3)
    with store.reader() as source:
        for n in range(1, 4):
            assert source.query("SELECT count(*) AS n FROM events").item() == n * 30
            store.compact(grace_s=0)
            assert source.query("SELECT count(*) AS n FROM events WHERE seq >= ?", [10]).item() == n * 30 - 10
            fill(store, 3, first=n * 30)


def test_reader_asks_again_when_files_go_while_it_asks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 3)
    real = reader.rows
    asked: list[str] = []

    def rows_late(connection: duckdb.DuckDBPyConnection, statement: str, parameters: Any) -> pl.DataFrame:
        if not asked:
            store.compact(grace_s=0)
        asked.append(statement)
        return real(connection, statement, parameters)

    monkeypatch.setattr(reader, "rows", rows_late)
    with store.reader() as source:
        assert source.query("SELECT count(*) AS n FROM events").item() == 30
    assert len(asked) == 2


def test_reader_passes_on_errors_in_the_statement(store: Store) -> None:
    with store.reader() as source, pytest.raises(duckdb.CatalogException):
        source.query("SELECT * FROM nothing")


def test_only_one_process_maintains(store: Store) -> None:
    with (
        maintenance_lock(store._layout, wait=False),
        pytest.raises(StoreBusy, match="Another process is maintaining"),
    ):
        store.compact()
    store.compact()


def test_a_damaged_segment_is_left_alone_and_reported(store: Store) -> None:
    fill(store, 4)
    flip(store.path / "flushed/1/1/ev-w-0000000002.parquet", 500)
    done = store.compact(grace_s=0)
    assert done.merged == 3
    assert "ev-w-0000000002" in done.damaged[0].message
    assert {s.name for s in store.segments() if not s.sealed} == {"flushed/1/1/ev-w-0000000002.parquet"}


@pytest.mark.parametrize("from_end", [6, 300, 2000])
def test_a_segment_with_a_damaged_footer_is_left_alone_as_well(store: Store, from_end: int) -> None:
    fill(store, 5)
    flip(store.path / "flushed/1/1/ev-w-0000000004.parquet", 500)
    torn = store.path / "flushed/1/1/ev-w-0000000002.parquet"
    flip(torn, torn.stat().st_size - from_end)
    opened = Store.open(store.path)  # nothing is known yet of what its segments say of themselves
    done = opened.compact(grace_s=0)
    assert (done.merged, done.rows) == (3, 30)
    assert sorted(re.findall(r"ev-w-\d+", str([d.message for d in done.damaged]))) == [
        "ev-w-0000000002",
        "ev-w-0000000004",
    ]
    assert torn.exists()
    assert {p.name for p in opened.verify() if p.severity == "error"} == {
        "flushed/1/1/ev-w-0000000002.parquet",
        "flushed/1/1/ev-w-0000000004.parquet",
    }


def test_rows_are_rewritten_a_logarithmic_number_of_times(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = 0
    for n in range(12):
        fill(store, 2, rows=5, first=n * 10)
        rewritten += store.compact(grace_s=0).rows
    assert len(store.segments()) < 6
    assert rewritten <= 120 * 4
    assert seqs(store) == list(range(120))


def test_full_segments_are_not_merged_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.store.compaction.TARGET_ROWS", 40)
    fill(store, 9)
    assert (done := store.compact(grace_s=0)).rows == 80
    assert done.into == 2
    assert plan(store.segments()) == []
    assert_whole(store)


def test_a_large_backlog_is_merged_in_steps_that_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.store.compaction._GROUP_SEGMENTS", 2)
    fill(store, 6)
    steps: list[int] = []
    real = compaction._replace

    def interrupted(*arguments: Any) -> None:
        if len(steps) == 2:
            raise KeyboardInterrupt
        steps.append(1)
        real(*arguments)

    with monkeypatch.context() as patches:
        patches.setattr(compaction, "_replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.compact(grace_s=0)
    assert sorted(s.rows for s in store.segments()) == [10, 10, 20, 20]
    assert store.compact(grace_s=0).merged >= 2
    assert seqs(store) == list(range(60))
    assert_whole(store)


def test_compaction_is_due_when_there_are_many_segments(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.store.store.DUE_SEGMENTS", 3)
    fill(store, 2)
    assert not store.compaction_due()
    fill(store, 1, first=20)
    assert store.compaction_due()
    store.compact()
    assert not store.compaction_due()


def test_row_groups_are_bounded_in_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.store.segment.GROUP_BYTES", 400_000)
    with store.writer("w") as writer:
        writer.append(events(40, pages=[list(range(5000))] * 40))
    metadata = pq.read_metadata(store.path / store.segments()[0].name)
    assert metadata.num_row_groups >= 2
    assert store.events(["pages"]).select(pl.col("pages").list.len().sum()).collect().item() == 200_000


def test_marks_say_what_is_new_whatever_is_merged(store: Store) -> None:
    fill(store, 3)
    marks = store.snapshot().marks()
    assert store.events(["seq"], since=marks).collect().height == 0
    fill(store, 2, first=30)
    store.import_batches(iter([events(4, 0, source="other")]), sha256=sha("f"))
    store.compact(grace_s=0)
    new = store.events(["source", "seq"], since=marks).sort("source", "seq").collect()
    assert new["seq"].to_list() == [*range(30, 50), 0, 1, 2, 3]
    with store.writer("w") as writer:
        writer.append(events(1, 50))
    assert store.events(["seq"], since=store.snapshot().marks()).collect().height == 0


def test_segment_column(store: Store) -> None:
    fill(store, 2)
    names = store.events(["segment"]).collect()["segment"].unique().sort().to_list()
    assert names == ["flushed/1/1/ev-w-0000000001.parquet", "flushed/1/1/ev-w-0000000002.parquet"]
    with pytest.raises(StoreError, match="no column colour"):
        store.events(["colour"])


def test_sealed_files_that_the_manifest_never_named_are_removed(store: Store) -> None:
    fill(store, 2)
    stray = store.path / "sealed" / "ev-0123456789abcdef.parquet"
    stray.write_bytes(Path(store.path / "flushed/1/1/ev-w-0000000001.parquet").read_bytes())
    assert sql_count(store) == 20
    assert [p.kind for p in store.verify()] == ["leftover"]
    assert store.compact().leftovers.files == ("sealed/ev-0123456789abcdef.parquet",)
    assert_whole(store)


def test_a_snapshot_taken_while_segments_move_is_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction comes to its end just between the manifest and the directories being read."""
    fill(store, 4)
    look = snapshot._loose
    merged: list[int] = []

    def look_late(layout: Layout, manifest: Manifest) -> list[str]:
        if not merged:
            merged.append(0)  # the compaction takes a snapshot itself
            merged.append(Store.open(store.path).compact(grace_s=0).merged)
        return look(layout, manifest)

    monkeypatch.setattr(snapshot, "_loose", look_late)
    assert seqs(store) == list(range(40))
    assert merged == [0, 4]


def test_views_look_for_files_before_they_look_at_their_marker(store: Store) -> None:
    """In the other order, files could go between the two, and a query would be short without noticing. And
    each scan has one pattern, since DuckDB resolves further ones only while the query runs."""
    fill(store, 3)
    store.compact(grace_s=3600)
    with store.connect() as con:
        row = con.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'events'").fetchone()
    assert row is not None
    scans = [scan.split(",")[0] for scan in row[0].split("read_parquet(")[1:]]
    assert len(scans) == 5
    assert "/sealed/" in scans[0]
    assert ["*" in scan for scan in scans] == [False, True, True, True, False]
    assert "/generations/" in scans[4]
