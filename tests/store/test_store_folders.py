"""The folders of live segments: a query passes by no replaced files, and sees all that come."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import duckdb
import pytest

from kvwitness.audit.store import Store, StoreBusy, folders
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import load
from kvwitness.audit.store.rotation import Current
from tests.store.support import assert_whole, events, flip, seqs, sql_count

COUNT = "SELECT count(*) FROM events"


def flush(store: Store, first: int, flushes: int = 2) -> int:
    """Flush ten events so many times; the next seq."""
    with store.writer("w") as writer:
        for n in range(flushes):
            writer.append(events(10, first + 10 * n))
            writer.flush()
    return first + 10 * flushes


def searched(store: Store) -> set[str]:
    """The live segments that a new connection looks at, by the patterns in its views."""
    with store.connect() as con:
        row = con.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'events'").fetchone()
        assert row is not None
        patterns = [p.split("'")[1] for p in row[0].split("read_parquet(")[1:] if "*" in p.split(",")[0]]
        found = [con.execute("SELECT file FROM glob(?)", [p]).fetchall() for p in patterns if "/flushed/" in p]
    return {file for rows in found for (file,) in rows if "/ev-" in file}


def test_a_query_does_not_pass_by_replaced_files(store: Store) -> None:
    first = flush(store, 0, 5)
    assert len(searched(store)) == 5
    store.compact()
    assert len(list(store.path.glob("flushed/*/*/ev-*"))) == 5  # they stay for connections from before
    assert searched(store) == set()
    flush(store, first)
    assert len(searched(store)) == 2
    with store.connect() as con:
        (text,) = con.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'events'").fetchall()[0]
    assert "ev-w-" not in text
    assert_whole(store)


def test_a_connection_from_before_sees_what_is_flushed_into_later_folders(store: Store) -> None:
    first = flush(store, 0)
    with store.connect() as old:
        for _ in range(40):  # into another block
            store.compact()
            first = flush(store, first)
            assert old.execute(COUNT).fetchone() == (first,)
            assert sql_count(store) == first
        store.compact(grace_s=0)
        store.compact(grace_s=0)
    assert seqs(store) == list(range(first))


def test_what_is_left_of_a_closed_folder_still_counts(store: Store) -> None:
    first = flush(store, 0, 4)
    damaged = store.path / "flushed/1/1/ev-w-0000000002.parquet"
    whole = damaged.read_bytes()
    flip(damaged, 400)
    assert store.compact(grace_s=0).merged == 3
    damaged.write_bytes(whole)
    flush(store, first, 1)
    assert sql_count(store) == 50
    assert [p.name for p in store.path.glob("flushed/1/1/*")] == [damaged.name]
    with store.connect() as con:
        kinds = con.execute("SELECT kind, sum(rows)::INT FROM segments GROUP BY ALL ORDER BY ALL").fetchall()
    assert kinds == [("live", 20), ("sealed", 30)]
    assert store.compact(grace_s=0).merged == 3
    assert not (store.path / "flushed/1/1").exists()
    assert seqs(store) == list(range(50))
    assert_whole(store)


def test_a_folder_that_is_merged_in_steps_goes_as_a_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.store.compaction._GROUP_SEGMENTS", 2)
    first = flush(store, 0, 6)
    assert store.compact().merged == 6
    assert store.info()["waiting_for_removal"] == 1
    assert len(list(store.path.glob("flushed/1/1/ev-*"))) == 6
    assert seqs(store) == list(range(first))


@pytest.mark.parametrize("first", [0, 1, 34, 35, 600, 1224, 1225, 3000])
def test_patterns_find_the_folders_from_one_on_and_none_before(first: int) -> None:
    patterns = folders.patterns(first)
    block = first // 35

    def found(number: int) -> bool:
        return any(fnmatchcase(f"{folders.name(number)}/ev-w-0000000001.parquet", p) for p in patterns)

    assert all(found(n) for n in range(first, (block + folders.AHEAD + 1) * 35))
    assert not any(found(n) for n in range(max(0, (block - folders.AHEAD) * 35), first))
    for directory in folders.seed_dirs(first):
        assert any(fnmatchcase(f"{directory}/0-empty.parquet", p) for p in patterns)


@pytest.fixture
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks of three folders, of which views search two: the names come round every nine folders."""
    for name, value in (("DIGITS", "123"), ("AHEAD", 1), ("_BASE", 3), ("_ROUND", 9)):
        monkeypatch.setattr(folders, name, value)


@pytest.mark.usefixtures("small_ring")
def test_names_come_round_again(store: Store) -> None:
    first = 0
    for _ in range(20):
        with store.connect() as old:
            first = flush(store, first)
            store.compact(grace_s=0)
            with pytest.raises(duckdb.IOException, match="No files found"):
                old.execute(COUNT).fetchone()
        assert sql_count(store) == first
    assert load(Layout.of(store.path)).folder == 20
    assert seqs(store) == list(range(first))
    assert_whole(store)


@pytest.mark.usefixtures("small_ring")
def test_no_folder_is_taken_again_while_readers_may_look_for_it(store: Store) -> None:
    first = flush(store, 0)
    with store.connect() as old:
        crowded = 0
        for _ in range(12):
            crowded += store.compact().crowded
            first = flush(store, first, 1)
            assert old.execute(COUNT).fetchone() == (first,)
            assert sql_count(store) == first
        assert crowded > 4
        assert seqs(store) == list(range(first))
        with pytest.raises(StoreBusy, match="too many folders"):
            store.retain(tenant="alice")
    assert_whole(store)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_folder_is_closed_when_the_writers_in_it_have_finished(store: Store) -> None:
    first = flush(store, 0)
    with Current(Layout.of(store.path)).held() as folder:
        compaction = in_thread(lambda: Store.open(store.path).compact(grace_s=0))
        while load(Layout.of(store.path)).folder == 0:
            pass  # others are sent on ...
        with store.writer("other") as other:
            other.append(events(10, first))
            assert other.flush() == "flushed/1/2/ev-other-0000000001.parquet"
        late = store.path / folder / "ev-late-0000000001.parquet"
        with store.writer("late") as writer:
            writer.append(events(10, first + 10))
            name = writer.flush()
        assert name is not None
        os.rename(store.path / name, late)  # ... and what is flushed by one that was there before is not lost
        assert compaction.is_alive()
    compaction.join()
    assert not late.exists()
    assert seqs(store) == list(range(first + 20))
    assert sql_count(store) == first + 20
    assert_whole(store)


def test_segments_of_a_backup_from_later_folders_count(store: Store) -> None:
    """A backup has the manifest first, and the segments a little later, when writers may have been sent on."""
    first = flush(store, 0)
    manifest = (store.path / "manifest.json").read_bytes()
    with store.writer("w") as writer:
        writer.append(events(10, first))
        store.compact()
        later = writer.flush()
    assert later == "flushed/1/2/ev-w-0000000003.parquet"
    (store.path / "manifest.json").write_bytes(manifest)
    restored = Store.open(store.path)
    restored.publish()
    assert seqs(restored) == list(range(first + 10))
    assert sql_count(restored) == first + 10
    assert flush(restored, first + 10) == first + 30
    restored.compact(grace_s=0)
    assert seqs(restored) == list(range(first + 30))
    assert_whole(restored)


def test_a_segment_where_nobody_looks_is_found(store: Store) -> None:
    first = flush(store, 0)
    copy = (store.path / "flushed/1/1/ev-w-0000000001.parquet").read_bytes()
    flush(store, first)
    store.compact(grace_s=0)
    assert_whole(store)
    strays = ["flushed/1/1/ev-x-0000000001.parquet", "live/ev-x-0000000002.parquet"]
    for name in strays:
        (store.path / name).parent.mkdir()
        (store.path / name).write_bytes(copy)
    assert [(p.kind, p.name, p.severity) for p in store.verify()] == [("stray", name, "error") for name in strays]
    assert sql_count(store) == first + 20


def test_a_folder_that_is_gone_is_said(store: Store, tmp_path: Path) -> None:
    with store.writer("w") as writer:
        writer.append(events(10))
        (store.path / "flushed").rename(tmp_path / "away")
        with pytest.raises(Exception, match="No such file or directory while writing"):
            writer.flush()
        (tmp_path / "away").rename(store.path / "flushed")
        assert writer.flush() == "flushed/1/1/ev-w-0000000001.parquet"
    assert_whole(store)
