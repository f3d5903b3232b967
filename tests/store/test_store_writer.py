"""Writers: what is flushed is there, in order, once; names and numbers never collide."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvwitness.audit.store import STORE_SCHEMA, CorruptSegment, NoStore, Store, StoreError
from kvwitness.audit.store.segment import check_segment
from tests.store.support import T0, assert_whole, events, flip, seqs, sql_count


def test_what_is_flushed_is_read_back_equal(store: Store) -> None:
    table = events(100, pages=[[5], [], None, [4_294_967_295, 0]] * 25, digests=[["a", "b"], None] * 50)
    with store.writer("gateway") as writer:
        writer.append(table)
        assert store.events().collect().height == 0
        assert writer.waiting == 100
        name = writer.flush()
        assert (name, writer.flush()) == ("flushed/1/1/ev-gateway-0000000001.parquet", None)
    read = store.events().sort("seq").collect()
    assert list(read.columns) == STORE_SCHEMA.names
    expected = pl.DataFrame(table)
    assert read.select(expected.columns).equals(expected.cast(read.select(expected.columns).schema))
    assert read.drop([*expected.columns, "ingest", "ingest_row"]).null_count().sum_horizontal().item() == 100 * (
        len(STORE_SCHEMA) - len(expected.columns) - 2
    )
    assert_whole(store)


def test_segment_describes_itself(store: Store) -> None:
    with store.writer("w", origin="ring of rank 0") as writer:
        writer.append(events(10, 5))
        writer.append(events(3, 0, source=None))
    (segment,) = store.segments()
    assert (segment.rows, segment.kind, segment.sealed, segment.origin) == (
        13,
        "live",
        False,
        "ring of rank 0",
    )
    assert (segment.min_time_ns, segment.max_time_ns) == (T0, T0 + 14_000_000)
    spans = {name: (s.rows, s.first, s.last) for name, s in segment.sources.items()}
    assert spans == {"decode-0/rank-0": (10, 5, 14), None: (3, 0, 2)}
    assert segment.bytes == (store.path / segment.name).stat().st_size


def encodings(store: Store) -> dict[str, tuple[str, ...]]:
    """column -> encodings in the newest segment, all of which has to be zstd."""
    group = pq.read_metadata(store.path / store.segments()[-1].name).row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    assert {c.compression for c in columns} == {"ZSTD"}
    return {c.path_in_schema: c.encodings for c in columns}


def test_integers_are_kept_as_differences(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(1000))
    found = encodings(store)
    assert "DELTA_BINARY_PACKED" in found["seq"]
    assert "DELTA_BINARY_PACKED" in found["time_ns"]
    assert "RLE_DICTIONARY" in found["tenant"]


@pytest.mark.parametrize(("aged", "encoding"), [(False, "DELTA_BINARY_PACKED"), (True, "PLAIN")])
def test_page_lists_are_kept_in_the_smaller_of_two_ways(store: Store, aged: bool, encoding: str) -> None:
    """A fresh pool hands out runs; an aged one scattered pages, the same list to each event of a request."""
    generator = np.random.default_rng(7)
    lists = generator.integers(0, 50_000, (100, 700)) if aged else np.arange(70_000).reshape(100, 700)
    with store.writer("w") as writer:
        writer.append(events(400, pages=np.repeat(lists, 4, axis=0).astype(np.uint32).tolist()))
    assert encoding in encodings(store)["pages.list.element"]
    (segment,) = store.segments()
    assert segment.bytes / 280_000 < (1.2 if aged else 0.3)
    pages = store.events(["pages"]).select(pl.col("pages").explode().cast(pl.Int64).sum()).collect().item()
    assert pages == 4 * lists.sum()


def test_any_damaged_byte_is_found(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(50))
    name = store.segments()[0].name
    path = store.path / name
    size = path.stat().st_size
    generator = random.Random(5)
    for offset in [0, 4, size - 1, size - 5, *generator.sample(range(size), 60)]:
        flip(path, offset)
        with pytest.raises(CorruptSegment, match=r"ev-w-0000000001\.parquet"):
            check_segment(path, name)
        flip(path, offset)
    check_segment(path, name)
    whole = path.read_bytes()
    for length in (0, 7, size // 2, size - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptSegment):
            check_segment(path, name)


def test_writer_continues_its_numbers_after_a_restart_and_after_compaction(store: Store) -> None:
    for first in (0, 10):
        with store.writer("w") as writer:
            writer.append(events(10, first))
    store.compact(grace_s=0)
    assert not list((store.path / "flushed").glob("*/*/ev-w-*"))
    with store.writer("w") as writer:
        writer.append(events(10, 20))
        assert writer.flush() == "flushed/1/2/ev-w-0000000003.parquet"
    assert seqs(store) == list(range(30))
    assert_whole(store)


def test_two_writers_of_one_name_do_not_collide(store: Store) -> None:
    with store.writer("decode-0/rank 1") as one, store.writer("decode-0/rank 1") as two:
        assert (one.id, two.id) == ("decode-0%2Frank%201", "decode-0%2Frank%201~2")
        one.append(events(5))
        two.append(events(5, 5))
    with store.writer("decode-0/rank 1") as again:
        assert again.id == one.id
    assert seqs(store) == list(range(10))
    assert_whole(store)


def test_large_appends_flush_by_themselves(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(300_000, pages=[[1]] * 300_000))
        assert 0 < writer.waiting < 300_000
        assert writer.last_segment == "flushed/1/1/ev-w-0000000001.parquet"
    assert sql_count(store) == 300_000
    assert_whole(store)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that is the point here
def test_a_forked_child_cannot_use_the_parents_writer(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(5))
        child = os.fork()
        if child == 0:
            try:
                writer.flush()
            except StoreError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert seqs(store) == list(range(5))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (events(2).append_column("colour", pa.array(["r", "g"])), "colour"),
        (events(2).drop_columns(["event"]), "`event`"),
        (events(2, event=None), "`event` is null in row 0"),  # type: ignore[arg-type]
        (events(2, pages=[["a"], ["b"]]), "`pages` cannot be kept"),
        (events(2, seq=[1, 2**63 - 1], gen=[0.5, 1.0]), "`gen` cannot be kept"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_whole(store: Store, batch: pa.Table, message: str) -> None:
    with store.writer("w") as writer:
        with pytest.raises(StoreError, match=message):
            writer.append(batch)
        assert writer.waiting == 0
    assert sql_count(store) == 0


@pytest.mark.parametrize("name", ["", "x" * 121, "import-1"])
def test_writer_names_are_checked(store: Store, name: str) -> None:
    with pytest.raises(StoreError):
        store.writer(name)


def test_times_that_jump_are_kept_counted_and_not_used_for_order(store: Store) -> None:
    future = 4_000_000_000_000_000_000
    with store.writer("w") as writer:
        writer.append(events(4, times=[T0 + 5, T0 + 4, T0 + 6, future]))
        writer.flush()
        writer.append(events(2, 4, times=[T0, T0 + 1]))  # back again, across a flush
        writer.append(events(1, source="other", times=[T0 - 9]))  # another clock: no jump
    info = store.info()
    assert (info["times_backwards"], info["times_in_future"], info["rows"]) == (2, 1, 7)
    assert seqs(store) == list(range(6))
    store.compact(grace_s=0)
    assert (store.info()["times_backwards"], store.info()["times_in_future"]) == (2, 1)
    arrival = store.events(["seq", "ingest_row"]).sort("ingest_row").collect()
    assert arrival["seq"].to_list() == [0, 1, 2, 3, 4, 5, 0]


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="There is no store"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("dear diary")
    with pytest.raises(NoStore):
        Store.open(tmp_path / "full")
    with pytest.raises(StoreError, match="not a store"):
        Store.create(tmp_path / "full")
    with pytest.raises(StoreError, match=r"must not contain \*"):
        Store.create(tmp_path / "a*b")


def test_create_twice(store: Store) -> None:
    with pytest.raises(StoreError, match="already"):
        Store.create(store.path)
    with store.writer("w") as writer:
        writer.append(events(1))
    assert sql_count(Store.create(store.path, exist_ok=True)) == 1


def test_info_of_a_store(store: Store) -> None:
    with store.writer("gate way") as writer:
        writer.append(events(10, 3))
    info = store.info()
    assert info["writers"] == [{"writer": "gate way", "rows": 10}]
    assert info["sources"] == [{"source": "decode-0/rank-0", "rows": 10, "min_seq": 3, "max_seq": 12}]
    assert info["segments"] == {"live": 1}
    assert info["bytes"] == sum(s.bytes for s in store.segments())
    assert info["bytes_per_row"] == round(info["bytes"] / 10, 2)
