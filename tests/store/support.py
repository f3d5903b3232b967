"""Events to fill a store with, and what every store must always satisfy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from kvwitness.audit.store import Store

T0 = 1_790_000_000_000_000_000


def events(
    count: int,
    first: int = 0,
    *,
    source: str | None = "decode-0/rank-0",
    tenant: str | None = "alice",
    request: str | None = None,
    event: str = "page.read",
    times: Sequence[int] | None = None,
    **columns: Sequence[object],
) -> pa.Table:
    """`count` events of one source with seq from `first`, four to a request, three pages each."""
    numbers = range(first, first + count)
    data: dict[str, pa.Array] = {
        "time_ns": pa.array(times if times is not None else [T0 + n * 1_000_000 for n in numbers], pa.int64()),
        "event": pa.array([event] * count),
        "source": pa.array([source] * count, pa.string()),
        "seq": pa.array(list(numbers), pa.int64()),
        "request": pa.array([request or f"{tenant}-{n // 4}" for n in numbers]),
        "tenant": pa.array([tenant] * count, pa.string()),
        "pool": pa.array(["decode-0/rank-0/kv"] * count),
        "pages": pa.array([[n % 97, n % 97 + 1, n % 97 + 2] for n in numbers], pa.list_(pa.uint32())),
    }
    for name, values in columns.items():
        data[name] = pa.array(values)
    return pa.table(data)


def sha(text: str) -> str:
    """The SHA-256 that a file with this text would have."""
    return hashlib.sha256(text.encode()).hexdigest()


def seqs(store: Store, source: str = "decode-0/rank-0") -> list[int]:
    """Every seq of a source that the store has, sorted; doubled rows appear twice."""
    frame = store.events(["source", "seq"]).filter(pl.col("source") == source).sort("seq").collect()
    return frame["seq"].to_list()


def sql_count(store: Store) -> int:
    """The number of events that SQL sees through a new connection."""
    with store.connect() as con:
        row = con.execute("SELECT count(*) FROM events").fetchone()
    assert row is not None
    return int(row[0])


def assert_whole(store: Store) -> None:
    """Nothing damaged, doubled, missing or left over, and both ways of reading agree."""
    assert store.verify() == []
    assert sql_count(store) == store.events(["seq"]).select(pl.len()).collect().item()


def flip(path: Path, offset: int) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)
