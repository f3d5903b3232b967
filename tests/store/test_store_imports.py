"""Imports: whole or not at all, and once for the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kvwitness.audit.store import Store, StoreError
from tests.store.support import assert_whole, events, seqs, sha, sql_count


def batches(count: int, rows: int = 100) -> Iterator[pa.RecordBatch]:
    for n in range(count):
        yield from events(rows, n * rows).to_batches()


def test_import_adds_everything_once(store: Store) -> None:
    first = store.import_batches(batches(3), sha256=sha("f"), name="f.jsonl", report={"lines": 300, "bad": 0})
    again = store.import_batches(batches(3), sha256=lambda: sha("f"), name="copy-of-f.jsonl")
    assert (first.added, first.duplicate) == (300, False)
    assert (again.added, again.duplicate, again.record) == (0, True, first.record)
    assert seqs(store) == list(range(300))
    record = store.find_import(sha("f"))
    assert record is not None
    assert (record.name, record.rows, record.report) == ("f.jsonl", 300, {"lines": 300, "bad": 0})
    assert [r.sha256 for r in store.imports()] == [sha("f")]
    assert store.find_import(sha("g")) is None
    assert_whole(store)


def test_known_duplicate_is_not_even_read(store: Store) -> None:
    store.import_batches(batches(1), sha256=sha("f"))

    rest = batches(1)
    assert store.import_batches(rest, sha256=sha("f")).duplicate
    assert next(rest).num_rows == 100


def test_nothing_is_visible_before_the_end_and_nothing_remains_of_a_failure(store: Store) -> None:
    def fails() -> Iterator[pa.RecordBatch]:
        yield from batches(2)
        assert sql_count(store) == 0
        raise OSError("the pipe broke")

    with pytest.raises(OSError, match="the pipe broke"):
        store.import_batches(fails(), sha256=lambda: sha("f"))
    assert list((store.path / "staging").iterdir()) == []
    assert sql_count(store) == 0
    assert store.import_batches(batches(2), sha256=sha("f")).added == 200
    assert_whole(store)


def test_a_duplicate_stays_one_after_compaction_and_retention(store: Store) -> None:
    for n in range(3):
        store.import_batches(iter([events(10, n * 10)]), sha256=sha(str(n)))
    assert store.compact(grace_s=0).merged == 3
    assert store.import_batches(iter([events(10)]), sha256=sha("0")).duplicate
    assert store.retain(tenant="alice").rows == 30
    assert store.import_batches(iter([events(10)]), sha256=sha("0")).duplicate
    assert sql_count(store) == 0
    assert_whole(store)


def test_an_empty_file_is_an_import_too(store: Store) -> None:
    assert store.import_batches(iter([]), sha256=sha("")).added == 0
    assert store.import_batches(iter([]), sha256=sha("")).duplicate
    assert_whole(store)


def test_a_killed_import_leaves_a_directory_that_is_told_and_removed(store: Store) -> None:
    work = store.begin_import("f.jsonl")
    work.append(events(200_000))
    assert [p.kind for p in store.verify()] == []  # it is alive
    work._lock.release()  # as the system does when the process dies
    (problem,) = store.verify()
    assert (problem.kind, problem.severity) == ("leftover", "note")
    assert store.compact().leftovers.staging == (problem.name,)
    assert store.import_batches(batches(2), sha256=sha("f")).added == 200
    assert_whole(store)


def test_a_large_import_is_cut_into_segments_and_streamed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.store.imports.TARGET_ROWS", 250)
    assert store.import_batches(batches(9), sha256=sha("f")).added == 900
    assert [s.rows for s in store.segments()] == [300, 300, 300]
    assert {s.kind for s in store.segments()} == {"import"}
    assert seqs(store) == list(range(900))
    assert_whole(store)


def test_the_hash_must_be_one(store: Store) -> None:
    for wrong in ("", "../../etc", "A" * 64):
        with pytest.raises(StoreError, match="SHA-256"):
            store.import_batches(iter([]), sha256=wrong)


def test_imports_in_sql(store: Store, tmp_path: Path) -> None:
    store.import_batches(batches(1), sha256=sha("f"), name="it's.jsonl", report={"bad_total": 2})
    with store.connect() as con:
        rows = con.execute("SELECT name, rows, (report->>'bad_total')::INT FROM imports").fetchall()
    assert rows == [("it's.jsonl", 100, 2)]
