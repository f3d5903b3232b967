"""store.duckdb: right wherever the reader stands, clear about moves, healed after accidents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

from kvwitness.audit.store import MovedStore, Store
from tests.store.support import T0, assert_whole, events, sha, sql_count

COUNT = "SELECT count(*) FROM events"


def filled(path: Path) -> Store:
    store = Store.create(path)
    with store.writer("w") as writer:
        writer.append(events(10))
    store.import_batches(iter([events(5, 10)]), sha256=sha("f"))
    return store


def shell(path: Path, statement: str, cwd: Path, python: str = sys.executable) -> str:
    """What another process, which knows nothing of this program, gets from store.duckdb."""
    code = (
        "import duckdb, sys; con = duckdb.connect(sys.argv[1], read_only=True); "
        "print(con.execute(sys.argv[2]).fetchall())"
    )
    done = subprocess.run(
        [python, "-c", code, str(path), statement], cwd=cwd, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() + done.stderr


def test_views_resolve_from_any_directory(tmp_path: Path) -> None:
    store = filled(tmp_path / "a store's dir")
    assert shell(store.path / "store.duckdb", COUNT, Path("/")) == "[(15,)]"
    assert shell(Path("store.duckdb"), COUNT, store.path) == "[(15,)]"


def test_a_store_below_a_directory_named_like_a_partition(tmp_path: Path) -> None:
    store = filled(tmp_path / "tenant=mallory" / "seq=7")
    with store.connect() as con:
        assert con.execute("SELECT DISTINCT tenant FROM events").fetchall() == [("alice",)]
    assert store.events(["tenant"]).collect()["tenant"].unique().to_list() == ["alice"]
    assert_whole(store)


def test_columns_times_and_comments(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    with store.connect() as con:
        assert con.execute("SELECT count(*) FROM events WHERE epoch_ns(ts) = time_ns").fetchone() == (15,)
        assert con.execute("SELECT min(epoch_ns(ts)) FROM events").fetchone() == (T0,)
        bare = con.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name IN ('events', 'page_events') "
            "AND comment IS NULL AND database_name = 'store'"
        ).fetchall()
        assert bare == []
        pages = con.execute("SELECT page, position FROM page_events WHERE seq = 1 ORDER BY position").fetchall()
        assert pages == [(1, 0), (2, 1), (3, 2)]
        facts = dict(con.execute("FROM manifest").fetchall())
    assert (facts["path"], facts["schema_version"], facts["tenants"]) == (str(store.path), "1", "as recorded")


def test_the_attached_store_cannot_be_written(tmp_path: Path) -> None:
    with filled(tmp_path / "s").connect() as con, pytest.raises(duckdb.Error, match="read-only"):
        con.execute("CREATE TABLE store.mine AS SELECT 1")


def test_a_moved_store_says_so_and_publish_puts_it_right(tmp_path: Path) -> None:
    store = filled(tmp_path / "old")
    old = store.path
    old.rename(tmp_path / "new")
    moved = Store.open(tmp_path / "new")
    with pytest.raises(MovedStore, match=rf"published at {old} and is now at .*new"):
        moved.connect()
    assert moved.info()["moved"]
    assert [p.kind for p in moved.verify()] == ["moved"]
    assert moved.events(["seq"]).collect().height == 15  # needs no views
    moved.publish()
    assert sql_count(moved) == 15
    assert_whole(moved)


def test_a_copied_store_does_not_answer_for_the_original(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    shutil.copytree(store.path, tmp_path / "b")
    with store.writer("w") as writer:
        writer.append(events(1, 99))
    with pytest.raises(MovedStore):
        Store.open(tmp_path / "b").connect()


def test_a_lost_or_broken_catalog_is_built_again(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    (store.path / "store.duckdb").unlink()
    assert sql_count(store) == 15
    (store.path / "store.duckdb").write_bytes(b"not a database")
    assert [p.kind for p in store.verify()] == ["catalog"]
    assert sql_count(store) == 15
    assert_whole(store)


def test_lost_seeds_are_written_again(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    for seed in ("flushed/0/0/0-empty.parquet", "imports/0-empty/0-empty.parquet"):
        (store.path / seed).unlink()
    assert [p.kind for p in store.verify()] == ["damaged", "damaged"]
    store.publish()
    assert_whole(store)


def test_a_backup_made_while_everybody_works_can_be_restored(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    with store.writer("w") as writer:
        writer.append(events(5, 20))
    backup = tmp_path / "restored"
    backup.mkdir()
    shutil.copy(store.path / "manifest.json", backup)
    assert store.compact().merged == 3
    with store.writer("w") as writer:
        writer.append(events(5, 30))
    for directory in ("sealed", "imports", "flushed", "results"):  # empty directories may get lost
        if any((store.path / directory).iterdir()):
            shutil.copytree(store.path / directory, backup / directory)
    restored = Store.open(backup)
    restored.publish()
    assert sql_count(restored) == 25
    restored.compact(grace_s=0)
    assert sql_count(restored) == 25
    assert_whole(restored)


def test_an_older_connection_in_this_process_does_not_hide_the_new_generation(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    old = store.connect()
    raw = duckdb.connect(str(store.path / "store.duckdb"), read_only=True)
    store.compact(grace_s=0)
    assert sql_count(store) == 15
    for con in (old, raw):
        with pytest.raises(duckdb.IOException, match="was-replaced"):
            con.execute(COUNT)
        con.close()


@pytest.mark.skipif(
    "KVWITNESS_DUCKDB_OLD" not in os.environ,
    reason="KVWITNESS_DUCKDB_OLD names no Python with an older duckdb (several with colons between them)",
)
def test_older_duckdb_reads_the_store(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    with store.writer("w") as writer:
        writer.append(events(10, 50))
    store.compact(grace_s=0)
    with store.writer("w") as writer:
        writer.append(events(7, 100))
    store.put_result("run-1", {"findings": pl.DataFrame({"rule": ["a"], "pages": [[1, 2]]})})
    for python in os.environ["KVWITNESS_DUCKDB_OLD"].split(":"):
        for statement, answer in (
            (COUNT, "[(32,)]"),
            (
                "SELECT count(*), sum(len(pages))::INT, max(year(ts)) FROM events WHERE tenant = 'alice'",
                "[(32, 96, 2026)]",
            ),
            (
                "SELECT kind, sum(rows)::INT FROM segments GROUP BY 1 ORDER BY 1",
                "[('live', 7), ('sealed', 25)]",
            ),
            ("SELECT rule, pages FROM findings", "[('a', [1, 2])]"),
            ("SELECT count(*) FROM imports", "[(1,)]"),
            ("SELECT count(*) FROM page_events", "[(96,)]"),
            ("SELECT comment FROM duckdb_views() WHERE view_name = 'events'", "Order by (source, seq)"),
        ):
            assert answer in shell(store.path / "store.duckdb", statement, tmp_path, python)


def test_somebody_who_opened_the_catalog_for_writing_does_not_lock_others_out(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    code = (
        "import duckdb, sys; con = duckdb.connect(sys.argv[1]); "
        "print(con.execute('SELECT count(*) FROM events').fetchone(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(store.path / "store.duckdb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"(15,)\n"
        assert sql_count(store) == 15
        other.kill()
    assert_whole(store)
