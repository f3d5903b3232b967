"""Schema versions: older stores are brought up to date in one step, newer ones are left alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvwitness.audit.store import NewerStore, OlderStore, Store, StoreError
from kvwitness.audit.store.migrations import MIGRATIONS
from kvwitness.audit.store.schema import INGEST, INGEST_ROW, SCHEMA_VERSION, STORE_SCHEMA
from kvwitness.audit.store.segment import SegmentWriter
from kvwitness.audit.store.stats import recount
from tests.store.support import assert_whole, events, seqs, sql_count

V0_SCHEMA = pa.schema(
    [
        pa.field("time_s", pa.float64(), nullable=False),
        *[f for f in STORE_SCHEMA if f.name not in ("time_ns", "tenant_source", "adapter")],
        pa.field("colour", pa.string()),
    ]
)
"""As a store might have looked before version 1: another unit of time, a column fewer, a column more."""


def from_v0(table: pa.Table) -> pa.Table:
    seconds = table.column("time_s").to_pylist()
    times = pa.array([round(s * 1e9) for s in seconds], pa.int64())
    return table.drop_columns(["time_s", "colour"]).append_column("time_ns", times)


@pytest.fixture
def migration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIGRATIONS, 0, from_v0)


def make_v0(path: Path) -> None:
    """A store of version 0: a sealed segment, a live one, and empty ones of its time."""
    store = Store.create(path)
    with store.writer("w") as writer:
        for first in (0, 10):
            writer.append(events(10, first))
            writer.flush()
    store.compact(grace_s=0)
    with store.writer("w") as writer:
        writer.append(events(5, 20))
    manifest = orjson.loads((path / "manifest.json").read_bytes())
    for segment in store.segments():
        old = _downgrade(path / segment.name, segment.name)
        if segment.sealed:
            manifest["sealed"][0] = old
    for seed in ("flushed/0/0/0-empty.parquet", "imports/0-empty/0-empty.parquet"):
        _downgrade(path / seed, seed)
    (path / "manifest.json").write_bytes(orjson.dumps({**manifest, "schema_version": 0}))


def _downgrade(path: Path, name: str) -> dict[str, object]:
    table = pq.read_table(path)
    stats = recount(table)
    seconds = pa.array([t / 1e9 for t in table.column("time_ns").to_pylist()], pa.float64())
    table = table.append_column("time_s", seconds)
    table = table.append_column("colour", pa.array(["red"] * table.num_rows, pa.string()))
    path.unlink()
    writer = SegmentWriter(path, schema=V0_SCHEMA, schema_version=0)
    writer.write(table.select(V0_SCHEMA.names).cast(V0_SCHEMA))
    return writer.finish(stats, name=name).to_json()


@pytest.mark.usefixtures("migration")
def test_migration_brings_every_segment_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "s"
    make_v0(path)
    with pytest.raises(OlderStore, match="kvwitness store migrate"):
        Store.open(path)
    done = Store.migrate(path)
    assert (done.from_version, done.to_version, done.segments, done.rows) == (0, 1, 2, 25)
    store = Store.open(path)
    assert seqs(store) == list(range(25))
    assert sql_count(store) == 25
    assert {s.schema_version for s in store.segments()} == {SCHEMA_VERSION}
    assert store.info()["min_time_ns"] == store.events(["time_ns"]).min().collect().item()
    assert_whole(store)
    again = Store.migrate(path)
    assert (again.from_version, again.segments) == (1, 0)
    with store.writer("w") as writer:
        writer.append(events(1, 25))
        assert writer.flush() == "flushed/1/3/ev-w-0000000004.parquet"
    assert_whole(store)


def test_without_a_way_nothing_is_changed(tmp_path: Path) -> None:
    make_v0(tmp_path / "s")
    before = {p: p.read_bytes() for p in (tmp_path / "s").rglob("*.parquet")}
    with pytest.raises(StoreError, match="no way from schema version 0 to 1"):
        Store.migrate(tmp_path / "s")
    assert {p: p.read_bytes() for p in (tmp_path / "s").rglob("*.parquet")} == before
    with pytest.raises(OlderStore):
        Store.open(tmp_path / "s")


@pytest.mark.usefixtures("migration")
def test_a_segment_from_an_old_collector_is_reported_and_migrated(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(5))
    old = store.path / "flushed/1/1/ev-old-0000000001.parquet"
    writer_v0 = SegmentWriter(old, schema=V0_SCHEMA, schema_version=0)
    table = pa.table({**{n: events(3, 5).column(n) for n in ("event", "source", "seq")}, "time_s": [1.0, 2.0, 3.0]})
    filled = pa.table(
        [table.column(f.name) if f.name in table.column_names else pa.nulls(3, f.type) for f in V0_SCHEMA],
        names=V0_SCHEMA.names,
    )
    v0 = filled.set_column(filled.column_names.index(INGEST), INGEST, pa.array(["old"] * 3))
    v0 = v0.set_column(v0.column_names.index(INGEST_ROW), INGEST_ROW, pa.array([1, 2, 3]))
    writer_v0.write(v0.cast(V0_SCHEMA))
    writer_v0.finish(recount(from_v0(v0)), name="flushed/1/1/ev-old-0000000001.parquet")
    assert [p.kind for p in store.verify()] == ["old-schema"]
    with pytest.raises(duckdb.Error), store.connect() as con:  # fails, rather than leaving rows out
        con.execute("SELECT sum(time_ns) FROM events").fetchall()
    with pytest.raises(OlderStore, match="collector of another version"), store.reading():
        store.events(["time_ns"]).sum().collect()
    assert Store.migrate(store.path).rows == 3
    assert seqs(store) == list(range(8))
    assert_whole(store)


@pytest.mark.parametrize("change", [{"schema_version": SCHEMA_VERSION + 1}, {"layout_version": 99}])
def test_a_newer_store_is_refused_with_advice_and_left_alone(store: Store, change: dict[str, int]) -> None:
    path = store.path / "manifest.json"
    text = orjson.dumps({**orjson.loads(path.read_bytes()), **change, "unheard_of": 1})
    path.write_bytes(text)
    for attempt in (
        lambda: Store.open(store.path),
        lambda: Store.migrate(store.path),
        lambda: store.compact(),
    ):
        with pytest.raises(NewerStore, match=r"(?s)newer version of kvwitness.*pip install --upgrade kvwitness"):
            attempt()
    assert path.read_bytes() == text


def test_columns_do_not_change_without_a_new_version() -> None:
    """If this fails, the columns changed: raise SCHEMA_VERSION, register a migration, and note the new sum
    here."""
    text = "\n".join(f"{f.name} {f.type} {f.nullable}" for f in STORE_SCHEMA)
    assert (SCHEMA_VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, "e2c67cf65778631f")
