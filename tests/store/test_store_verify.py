"""Damage: found, named, moved aside, brought back; never read as if nothing were wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from kvwitness.audit.store import CorruptSegment, Store, StoreError
from tests.store.support import assert_whole, events, flip, seqs, sha, sql_count


@pytest.fixture
def filled(store: Store) -> Store:
    with store.writer("w") as writer:
        for n in range(4):
            writer.append(events(10, n * 10))
            writer.flush()
            if n == 1:
                store.compact(grace_s=0)
    store.import_batches(iter([events(10, 40)]), sha256=sha("f"))
    return store


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("kind", ["live", "import", "sealed"])
def test_damage_is_found_by_its_checksum_and_can_be_moved_aside(filled: Store, tmp_path: Path, kind: str) -> None:
    segment = next(s for s in filled.segments() if s.kind == kind)
    path = filled.path / segment.name
    shutil.copy(path, tmp_path / "backup")
    flip(path, 300)
    (problem,) = filled.verify()
    assert (problem.kind, problem.name, problem.severity) == ("damaged", segment.name, "error")
    assert "--quarantine" in problem.advice

    old = filled.connect()
    (record,) = filled.quarantine()
    assert (record.name, record.rows) == (segment.name, segment.rows)
    assert (filled.path / record.moved_to).exists()
    assert len(seqs(filled)) == 50 - segment.rows == sql_count(filled)
    with pytest.raises(duckdb.Error):  # was opened when the rows were still there
        old.execute("SELECT count(*) FROM events")
    (known,) = filled.verify()
    assert (known.kind, known.severity) == ("quarantined", "note")
    assert filled.info()["quarantined"][0]["rows"] == segment.rows
    assert filled.quarantine() == []

    with pytest.raises(CorruptSegment):
        filled.reinstate(segment.name, filled.path / record.moved_to)
    with pytest.raises(StoreError, match="is in quarantine"):
        filled.reinstate("flushed/1/1/ev-x-0000000001.parquet", tmp_path / "backup")
    filled.reinstate(segment.name, tmp_path / "backup")
    assert seqs(filled) == list(range(50))
    assert_whole(filled)


def test_numbers_of_quarantined_segments_are_not_used_again(filled: Store) -> None:
    flip(filled.path / "flushed/1/2/ev-w-0000000004.parquet", 300)
    filled.quarantine()
    with filled.writer("w") as writer:
        writer.append(events(1, 99))
        assert writer.flush() == "flushed/1/3/ev-w-0000000005.parquet"


def test_reading_names_the_damaged_file(filled: Store) -> None:
    cut(filled.path / "flushed/1/2/ev-w-0000000003.parquet")
    with pytest.raises(CorruptSegment, match=r"flushed/1/2/ev-w-0000000003\.parquet"), filled.reading():
        filled.events().collect()
    with (
        filled.connect() as con,
        pytest.raises(CorruptSegment, match=r"flushed/1/2/ev-w-0000000003\.parquet"),
        filled.reading(),
    ):
        con.execute("SELECT sum(seq) FROM events").fetchall()


def test_a_snapshot_can_be_checked_before_it_is_trusted(filled: Store) -> None:
    filled.snapshot().check()
    flip(filled.path / "flushed/1/2/ev-w-0000000003.parquet", 400)
    with pytest.raises(CorruptSegment, match=r"ev-w-0000000003\.parquet"):
        filled.snapshot().check()


def test_other_errors_pass_through_reading(filled: Store) -> None:
    with pytest.raises(ZeroDivisionError), filled.reading():
        print(1 / 0)
    with filled.connect() as con, pytest.raises(duckdb.BinderException), filled.reading():
        con.execute("SELECT colour FROM events")


def test_a_missing_segment_is_an_error_until_the_loss_is_on_record(filled: Store) -> None:
    segment = next(s for s in filled.segments() if s.sealed)
    (filled.path / segment.name).unlink()
    assert [(p.kind, p.name) for p in filled.verify()] == [("missing", segment.name)]
    with pytest.raises(CorruptSegment, match="damaged or missing"), filled.reading():
        filled.events().collect()
    (record,) = filled.quarantine()
    assert (record.rows, record.moved_to) == (20, "")
    assert seqs(filled) == list(range(20, 50))


def test_rows_that_are_there_twice_are_found(filled: Store) -> None:
    live = filled.path / "flushed/1/2"
    shutil.copy(live / "ev-w-0000000003.parquet", live / "ev-copied-0000000001.parquet")
    (problem,) = filled.verify()
    assert (problem.kind, problem.severity) == ("doubled", "error")
    assert "10 rows of w are there more than once" in problem.message


def test_a_foreign_file_is_reported(filled: Store) -> None:
    (filled.path / "flushed/1/2" / "ev-mine-0000000001.parquet").write_bytes(b"PAR1 not really PAR1")
    assert [p.kind for p in filled.verify()] == ["damaged"]


def test_a_replaced_sealed_file_is_reported(filled: Store) -> None:
    segment = next(s for s in filled.segments() if s.sealed)
    shutil.copy(filled.path / "flushed/1/2/ev-w-0000000003.parquet", filled.path / segment.name)
    assert "damaged" in [p.kind for p in filled.verify()]


def test_a_damaged_import_record_is_reported(filled: Store) -> None:
    (filled.path / "imports" / sha("f") / "import.json").write_text("{")
    assert [p.kind for p in filled.verify()] == ["import-record"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', '{"format": "kvwitness-store"}'])
def test_a_damaged_manifest_is_refused(filled: Store, text: str) -> None:
    (filled.path / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        Store.open(filled.path)


def test_old_half_written_files_are_left_overs(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (filled.path / "tmp" / "ev-w-0000000009.parquet.77").write_bytes(b"PAR1")
    assert filled.verify() == []  # it may be in the making
    monkeypatch.setattr("kvwitness.audit.store.expiry.time.time", lambda: 9e9)
    assert [p.kind for p in filled.verify()] == ["leftover"]
    filled.compact(grace_s=0)
    assert list((filled.path / "tmp").iterdir()) == []
    assert_whole(filled)
