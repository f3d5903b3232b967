"""Retention: exactly what was asked for goes, everywhere, and is counted."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from kvwitness.audit.store import Store, StoreError
from tests.store.support import T0, assert_whole, events, sha, sql_count


def line(event: str, **columns: object) -> pa.Table:
    return pa.table({"time_ns": [T0], "event": [event], **{k: [v] for k, v in columns.items()}})


def left(store: Store) -> list[tuple[object, ...]]:
    columns = ["event", "request", "incarnation", "tenant", "transfer"]
    return store.events([*columns, "ingest_row"]).sort("ingest_row").drop("ingest_row").collect().rows()


def test_a_tenants_events_go_by_name_by_request_and_by_transfer(store: Store) -> None:
    mine = [
        line("request.received", request="r1", tenant="alice"),
        line("page.read", request="r1"),
        line("page.write", request="r1", incarnation=0),
        line("page.alloc", tenant="alice", holder="session"),
        line("transfer.begin", request="r1", transfer="t1"),
        line("transfer.done", transfer="t1"),
    ]
    others = [
        line("request.received", request="r2", tenant="bob"),
        line("page.read", request="r2"),
        line("page.read", request="r1", incarnation=1),  # another life of the id, not alice's
        line("page.read", request="r1", tenant="bob"),  # names another tenant
        line("transfer.begin", request="r2", transfer="t2"),
        line("transfer.done", transfer="t2"),
        line("transfer.begin", request="r1", transfer="t3"),  # goes, but ...
        line("transfer.begin", request="r2", transfer="t3"),
        line("transfer.done", transfer="t3"),  # ... this belongs to bob as well
        line("step.begin"),
    ]
    with store.writer("w") as writer:
        for pair in zip(mine, others, strict=False):
            for table in pair:
                writer.append(table)
        for table in others[len(mine) :]:
            writer.append(table)
            writer.flush()
    removal = store.retain(tenant="alice")
    assert removal.rows == len(mine) + 1
    assert (removal.requests, removal.shared_requests) == (1, 1)
    assert left(store) == [
        ("request.received", "r2", None, "bob", None),
        ("page.read", "r2", None, None, None),
        ("page.read", "r1", 1, None, None),
        ("page.read", "r1", None, "bob", None),
        ("transfer.begin", "r2", None, None, "t2"),
        ("transfer.done", None, None, None, "t2"),
        ("transfer.begin", "r2", None, None, "t3"),
        ("transfer.done", None, None, None, "t3"),
        ("step.begin", None, None, None, None),
    ]
    assert store.retain(tenant="alice").rows == 0
    assert [(r["rule"], r["rows"]) for r in store.info()["removals"]] == [("tenant", 7), ("tenant", 0)]
    assert "alice" not in (store.path / "manifest.json").read_text()
    assert_whole(store)


def test_nothing_of_a_tenant_stays_on_the_disk(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(20, tenant="alice-the-tenant"))
        writer.append(events(20, 20, tenant="bob"))
    store.import_batches(iter([events(8, 40, tenant="alice-the-tenant")]), sha256=sha("f"))
    store.put_result("run-1", {"findings": pl.DataFrame({"tenant": ["alice-the-tenant"]})})
    (store.checkpoint_dir / "pool").write_bytes(b"alice-the-tenant")
    old = store.connect()
    removal = store.retain(tenant="alice-the-tenant")
    assert (removal.rows, removal.results_dropped, removal.segments_dropped) == (28, 1, 1)
    for path in store.path.rglob("*"):
        assert not path.is_file() or b"alice" not in path.read_bytes(), path
    assert sql_count(store) == 20
    with pytest.raises(duckdb.IOException, match="was-replaced"):
        old.execute("SELECT count(*) FROM events")
    assert store.import_batches(iter([events(8, 40)]), sha256=sha("f")).duplicate  # does not come back
    assert_whole(store)


def test_by_age(store: Store) -> None:
    with store.writer("w") as writer:
        for first in (0, 10, 20):
            writer.append(events(10, first))
            writer.flush()
    removal = store.retain(older_than_ns=T0 + 15 * 1_000_000, grace_s=0)
    assert (removal.rule, removal.rows, removal.segments_rewritten, removal.segments_dropped) == (
        "age",
        15,
        1,
        1,
    )
    assert store.events(["seq"]).sort("seq").collect()["seq"].to_list() == list(range(15, 30))
    assert {s.name for s in store.segments() if not s.sealed} == {"flushed/1/1/ev-w-0000000003.parquet"}  # not touched
    assert_whole(store)


def test_by_age_goes_what_audits_made_of_it(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(10))
    store.put_result("run-1", {"findings": pl.DataFrame({"tenant": ["alice"]})})
    (store.checkpoint_dir / "audit").mkdir()
    (store.checkpoint_dir / "audit" / "part").write_bytes(b"events")
    assert store.retain(older_than_ns=T0 - 1).rows == 0
    assert (store.checkpoint_dir / "audit" / "part").exists()
    removal = store.retain(older_than_ns=T0 + 5 * 1_000_000)
    assert (removal.rows, removal.results_dropped) == (5, 0)  # the run is from now
    assert list(store.checkpoint_dir.iterdir()) == []
    assert store.retain(older_than_ns=time.time_ns()).results_dropped == 1
    assert store.result_runs() == []


def test_retention_waits_for_an_audit(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(10))
    with store.auditing():
        waiting = threading.Thread(target=lambda: Store.open(store.path).retain(tenant="alice"))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        store.put_result("run-1", {"findings": pl.DataFrame({"tenant": ["alice"]})})
    waiting.join(60)
    assert store.result_runs() == []
    assert sql_count(store) == 0


def test_by_age_leaves_readers_their_grace(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(10))
    lazy, con = store.events(["seq"]), store.connect()
    store.retain(older_than_ns=T0 + 5 * 1_000_000)
    assert lazy.collect().height == 10
    assert con.execute("SELECT count(*) FROM events").fetchone() == (10,)
    assert sql_count(store) == 5


def test_a_damaged_segment_stops_retention_before_anything_is_removed(store: Store) -> None:
    with store.writer("w") as writer:
        for first in (0, 10):
            writer.append(events(10, first))
            writer.flush()
    path = Path(store.path / "flushed/1/1/ev-w-0000000002.parquet")
    data = bytearray(path.read_bytes())
    data[-40] ^= 1  # in the footer, after what reading looks at
    path.write_bytes(data)
    with pytest.raises(StoreError):
        store.retain(tenant="alice")
    assert sql_count(store) == 20


@pytest.mark.parametrize("arguments", [{}, {"tenant": "a", "older_than_ns": 5}])
def test_one_rule_at_a_time(store: Store, arguments: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="a tenant or an age"):
        store.retain(**arguments)  # type: ignore[arg-type]


def test_numbers_are_not_reused_after_everything_was_removed(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(10))
    store.retain(tenant="alice")
    with store.writer("w") as writer:
        writer.append(events(1, 50))
        assert writer.flush() == "flushed/1/2/ev-w-0000000002.parquet"
