"""A store at work: a collector that writes, a compactor, and people who ask; each a process of its own."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvwitness.audit.asking import query
from kvwitness.audit.store import Store
from kvwitness.audit.trace import EVENT_SCHEMA

RATE = int(os.environ.get("KVWITNESS_QUERY_RATE", "50000"))
"""Events per second that the collector aims at."""
BATCH = 5_000
T0 = 1_790_000_000_000_000_000
LIMIT = 100


def _ordinary(count: int) -> pa.Table:
    rows = [
        {"event": "page.read", "source": "e/0", "request": f"r{n // 50}", "pool": "e/0/kv", "pages": [60 + n % 9]}
        for n in range(count)
    ]
    return pa.Table.from_pylist([{"time_ns": 0, **row} for row in rows], schema=EVENT_SCHEMA)


ORDINARY = _ordinary(BATCH)


def batch(number: int) -> pa.Table:
    """One flush: a prompt beyond the limit that is answered with success, told whole, among ordinary reads."""
    request = f"over-{number}"
    rows: list[dict[str, Any]] = [
        {"event": "engine.limits", "source": "e/0", "engine": "e", "input_limit_tokens": LIMIT},
        {"event": "request.received", "source": "gateway", "request": request, "tenant": "t-a", "prompt_tokens": 120},
        {"event": "page.alloc", "source": "e/0", "request": request, "pool": "e/0/kv", "pages": [number % 50]},
        {"event": "request.finished", "source": "gateway", "request": request, "status": 200, "prompt_tokens": 120},
    ]
    told = pa.Table.from_pylist([{"time_ns": 0, **row} for row in rows[number > 0 :]], schema=EVENT_SCHEMA)
    table = pa.concat_tables([told, ORDINARY.slice(0, BATCH - told.num_rows)])
    for name, first in (("time_ns", T0 + number * 100_000_000), ("seq", number * BATCH)):
        at = table.schema.get_field_index(name)
        numbers = pa.array(range(first, first + table.num_rows), pa.int64())
        table = table.set_column(at, table.schema.field(name), numbers)
    return table


def acknowledged(path: Path) -> int:
    """How many flushes have returned."""
    return int((path.parent / "acknowledged").read_text())


def collect(path: Path, stop: Any) -> None:
    """Write at the rate, flush by flush, until told to stop."""
    store = Store.open(path)
    began, number = time.monotonic(), acknowledged(path)
    first = number
    with store.writer("collector") as writer:
        while not stop.is_set():
            writer.append(batch(number))
            writer.flush()
            number += 1
            staged = path.parent / "acknowledged.tmp"
            staged.write_text(str(number))
            os.replace(staged, path.parent / "acknowledged")
            time.sleep(max(0.0, began + (number - first) * BATCH / RATE - time.monotonic()))


def compact(path: Path, stop: Any) -> None:
    """Merge small segments over and over."""
    store = Store.open(path)
    while not stop.wait(1.0):
        store.compact()


def ask(path: Path, seed: int, runs: int, told: Any) -> None:
    """Ask one query after another, and compare each answer with what had been acknowledged before.

    Tells of each run (kind, when it began, seconds, what was wrong or None).
    """
    rng = random.Random(seed)
    staying = _Staying(path)
    ways = (_over_limit, _timeline, _near, _notify, _counts, _bare, staying.staying)
    for _ in range(runs):
        way, began, wrong = rng.choice(ways), time.monotonic(), None
        try:
            way(path, rng)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        told.put((way.__name__.strip("_"), began, time.monotonic() - began, wrong))


def _expect(path: Path, name: str, before: int, found: list[str]) -> None:
    """All requests that were acknowledged before, each once, and none but such as may have come since."""
    after = acknowledged(path)
    numbers = sorted(int(request.removeprefix("over-")) for request in found)
    assert numbers[:before] == list(range(before)), f"{name}: {before} were acknowledged, {len(numbers)} found"
    assert len(numbers) <= after + 1, f"{name}: {len(numbers)} found, {after} acknowledged"


def _over_limit(path: Path, rng: random.Random) -> None:
    before = acknowledged(path)
    _expect(path, "over_limit_successes", before, query("over_limit_successes", store=path)["request"].to_list())


def _near(path: Path, rng: random.Random) -> None:
    before = acknowledged(path)
    frame = query("near_limit", store=path)
    _expect(path, "near_limit", before, frame["request"].to_list())


def _bare(path: Path, rng: random.Random) -> None:
    """Somebody with DuckDB alone, by the macro in store.duckdb."""
    before = acknowledged(path)
    with duckdb.connect() as con:
        con.execute(f"ATTACH '{path}/store.duckdb' AS store (READ_ONLY)")
        con.execute("USE store")
        rows = con.execute("SELECT request FROM over_limit_successes()").fetchall()
    _expect(path, "bare", before, [request for (request,) in rows])


class _Staying:
    """Somebody with DuckDB alone who stays connected until that fails, and then connects again."""

    def __init__(self, path: Path) -> None:
        self._con = self._connect(path)

    @staticmethod
    def _connect(path: Path) -> duckdb.DuckDBPyConnection:
        con = duckdb.connect()
        con.execute(f"ATTACH '{path}/store.duckdb' AS store (READ_ONLY)")
        return con

    def staying(self, path: Path, rng: random.Random) -> None:
        before = acknowledged(path)
        statement = "SELECT count(*), max(seq) FROM store.events WHERE seq IS NOT NULL"
        try:
            row = self._con.execute(statement).fetchone()
        except duckdb.IOException:  # the grace is over, which it says
            self._con = self._connect(path)
            row = self._con.execute(statement).fetchone()
        assert row is not None
        assert row[0] == row[1] + 1, f"staying: {row[0]} events, the last is {row[1]}"
        assert row[0] >= before * BATCH, f"staying: {before * BATCH} were acknowledged, {row[0]} found"


def _timeline(path: Path, rng: random.Random) -> None:
    number = rng.randrange(acknowledged(path))
    frame = query("request_timeline", store=path, request_id=f"over-{number}")
    assert frame["event"].to_list() == ["request.received", "page.alloc", "request.finished"]


def _notify(path: Path, rng: random.Random) -> None:
    assert query("tenants_to_notify", store=path)["tenant"].to_list() == []


def _counts(path: Path, rng: random.Random) -> None:
    assert len(query("count_disagreements", store=path)) == 0
