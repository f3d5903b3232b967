"""A store of layout 1, whose live segments all lay in one directory, goes on as one of today."""

from __future__ import annotations

import os
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from kvwitness.audit.store import OlderStore, Store
from tests.store.support import assert_whole, events, seqs, sql_count
from tests.store.test_store_crash import Death, death_at

OLD = Path(__file__).with_name("layout-1.tar.xz")
"""Written by a version of that layout: 12 sealed events, whose three live segments wait for removal, 8 live ones in two
segments of the writer w, and 4 imported ones."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old"
    with tarfile.open(OLD) as archive:
        archive.extractall(path, filter="data")
    for directory in ("locks", "tmp", "staging"):
        (path / directory).mkdir(exist_ok=True)
    return path


def test_it_is_refused_until_it_is_migrated(old: Path) -> None:
    before = sorted(old.rglob("*"))
    with pytest.raises(OlderStore, match=r"(?s)layout 1.*kvwitness store migrate"):
        Store.open(old)
    assert sorted(old.rglob("*")) == before


def test_migration_keeps_every_event_and_goes_on(old: Path) -> None:
    done = Store.migrate(old)
    con = duckdb.connect(str(old / "store.duckdb"), read_only=True)  # published, for whoever has nothing but DuckDB
    assert con.execute("SELECT count(*) FROM events").fetchone() == (24,)
    con.close()
    assert (done.from_layout, done.to_layout, done.from_version, done.segments) == (1, 2, 1, 0)
    store = Store.open(old)
    assert seqs(store) == list(range(24))
    assert sql_count(store) == 24
    assert_whole(store)
    with store.writer("w") as writer:
        writer.append(events(4, 24))
        assert writer.flush() == "flushed/1/1/ev-w-0000000006.parquet"
    assert store.compact(grace_s=0).merged == 5
    assert seqs(store) == list(range(28))
    assert_whole(store)
    assert Store.migrate(old).from_layout == 2


def test_a_collector_of_the_earlier_version_cannot_write_into_it(old: Path) -> None:
    """It would rename its segment into live/, where nobody looks any more, and acknowledge it."""
    segment = old / "live/ev-w-0000000005.parquet"
    waiting = shutil.copy(segment, old / "tmp" / "ev-old-0000000001.parquet")
    Store.migrate(old)
    with pytest.raises(FileNotFoundError):
        os.rename(waiting, segment.with_name("ev-old-0000000001.parquet"))


@pytest.mark.slow
def test_death_at_every_step_of_the_migration(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, step, died = tmp_path / "store", 0, True
    while died:
        step += 1
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(old, path)
        with death_at(step, monkeypatch) as reached:
            with suppress(Death):
                Store.migrate(path)
            died = reached()
        Store.migrate(path)
        store = Store.open(path)
        assert seqs(store) == list(range(24))
        assert sql_count(store) == 24
        assert [p for p in store.verify() if p.severity == "error"] == []
    assert step > 3
