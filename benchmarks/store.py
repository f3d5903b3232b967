"""What the store costs: rows per second in, bytes per row, and query latency at 1, 100 and 1,000 segments.

    python benchmarks/store.py
    python benchmarks/store.py --rows 1000000 --json out.json

Beside every number stands that of a native DuckDB table with the same rows, measured in the same run; only
the ratios travel from one machine to another. A row is an event with its list of pages, from a simulation of
aged pools. Writing counts a batch when it is acknowledged: synced, here as there. Queries are the questions
that the command line asks, each on a connection that is open; times are the best of several.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.audit import machine  # noqa: E402
from benchmarks.pools import Plan, Simulation  # noqa: E402
from kvwitness.audit.store import Store  # noqa: E402
from kvwitness.audit.trace import EVENT_SCHEMA  # noqa: E402

BATCHES = (1_000, 10_000, 100_000)
SEGMENTS = (1, 100, 1_000)
Result = dict[str, Any]


def make_rows(count: int) -> pa.Table:
    """`count` events of four aged pools, in the event schema."""
    parts: list[pa.RecordBatch] = []
    plan = Plan(page_events=max(100_000, count * 30), pools=4, max_pages=2_000, shares=0.2, transfers=0.2)
    have = 0
    for batch in Simulation(plan).batches():
        parts.append(batch)
        have += batch.num_rows
        if have >= count:
            break
    table = pa.Table.from_batches(parts)
    if table.num_rows < count:
        raise SystemExit(f"the simulation ended after {table.num_rows} rows")
    return table.slice(0, count)


def slices(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    """The table in batches."""
    return (table.slice(start, rows) for start in range(0, table.num_rows, rows))


def write_store(work: Path, table: pa.Table, batch: int) -> tuple[Store, Result]:
    """Batches into a new store, each acknowledged before the next."""
    store = Store.create(work / f"store-{batch}")
    begun = time.perf_counter()
    with store.writer("bench") as writer:
        for part in slices(table, batch):
            writer.append(part)
            writer.flush()
    seconds = time.perf_counter() - begun
    return store, {"rows_per_s": table.num_rows / seconds, "bytes_per_row": store.info()["bytes_per_row"]}


def write_native(work: Path, table: pa.Table, batch: int) -> tuple[Path, Result]:
    """The same batches into a DuckDB table, each a transaction."""
    path = work / f"native-{batch}.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute("SET enable_progress_bar = false")
        con.register("shape", EVENT_SCHEMA.empty_table())
        con.execute("CREATE TABLE events AS SELECT * FROM shape")
        begun = time.perf_counter()
        for part in slices(table, batch):
            con.register("part", part)
            con.execute("INSERT INTO events SELECT * FROM part")
        seconds = time.perf_counter() - begun
        con.unregister("part")
    return path, {
        "rows_per_s": table.num_rows / seconds,
        "bytes_per_row": path.stat().st_size / table.num_rows,
    }


def measure_writing(work: Path, table: pa.Table) -> list[Result]:
    """Rows per second and bytes per row for each size of batch; also after compaction."""
    results = []
    for batch in BATCHES:
        part = table.slice(0, min(table.num_rows, batch * 30))
        store, ours = write_store(work, part, batch)
        _, native = write_native(work, part, batch)
        begun = time.perf_counter()
        merged = store.compact(grace_s=0)
        compacting = time.perf_counter() - begun
        results.append(
            {
                "batch": batch,
                "rows": part.num_rows,
                "store": ours,
                "native": native,
                "compacted_bytes_per_row": store.info()["bytes_per_row"],
                "compaction_rows_per_s": merged.rows / compacting if merged.rows else None,
            }
        )
    return results


def measure_import(work: Path, table: pa.Table) -> Result:
    """Rows per second of an import of prepared batches."""
    store = Store.create(work / "import")
    begun = time.perf_counter()
    done = store.import_batches(slices(table, 65_536), sha256="0" * 64, name="bench")
    return {
        "rows_per_s": done.added / (time.perf_counter() - begun),
        "bytes_per_row": store.info()["bytes_per_row"],
    }


def questions(table: pa.Table) -> dict[str, str]:
    """What is asked, as SQL over `events`."""
    frame = pl.DataFrame(table.select(["time_ns", "request", "pool", "pages"]))
    request = frame["request"].drop_nulls().mode().sort()[0]
    row = frame.filter(pl.col("pages").list.len() > 0).row(frame.height // 3, named=True)
    times = frame["time_ns"].sort()
    first, last = times[frame.height // 2], times[frame.height // 2 + frame.height // 50]
    page, pool = row["pages"][0], row["pool"]
    return {
        "count": "SELECT count(*) FROM events",
        "by tenant": "SELECT tenant, count(*) FROM events GROUP BY tenant ORDER BY ALL",
        "one request": f"SELECT source, seq, event, pages FROM events WHERE request = '{request}' ORDER BY ALL",
        "one page": f"SELECT source, seq, event, request FROM events WHERE pool = '{pool}' "
        f"AND list_contains(pages, {page}) ORDER BY ALL",
        "time window": f"SELECT event, count(*) FROM events WHERE time_ns BETWEEN {first} AND {last} "
        "GROUP BY event ORDER BY ALL",
    }


def segmented(work: Path, table: pa.Table, count: int) -> Store:
    """The table as a store of `count` live segments."""
    store = Store.create(work / f"segments-{count}")
    with store.writer("bench") as writer:
        for part in slices(table, -(-table.num_rows // count)):
            writer.append(part)
            writer.flush()
    return store


def best_ms(ask: Callable[[], object], times: int = 5) -> float:
    """Least wall time of several calls, in milliseconds; slow ones are called less often."""
    least, until = float("inf"), time.perf_counter() + 1.0
    for n in range(times):
        if n > 1 and time.perf_counter() > until:
            break
        begun = time.perf_counter()
        ask()
        least = min(least, time.perf_counter() - begun)
    return least * 1e3


def asking(con: duckdb.DuckDBPyConnection, statement: str) -> Callable[[], object]:
    """A function that runs a statement."""
    return lambda: con.execute(statement).fetchall()


def measure_opening(store: Store) -> dict[str, float]:
    """Opening a connection, and the Polars way to one of the answers."""
    by_tenant = store.events(["tenant"]).group_by("tenant").len()
    return {
        "open": best_ms(lambda: store.connect().close()),
        "by tenant, Polars": best_ms(lambda: by_tenant.collect(engine="streaming")),
    }


def measure_queries(work: Path, table: pa.Table) -> list[Result]:
    """Latency of each question, natively and at each number of segments. All must give the same answer."""
    asked = questions(table)
    (work / "whole").mkdir()
    path, _ = write_native(work / "whole", table, table.num_rows)
    results: list[Result] = []
    with duckdb.connect(str(path), read_only=True) as native:
        native.execute("SET enable_progress_bar = false")
        answers = {name: native.execute(q).fetchall() for name, q in asked.items()}
        latency = {name: best_ms(asking(native, q)) for name, q in asked.items()}
    results.append({"segments": None, "ms": latency})
    for count in SEGMENTS:
        store = segmented(work, table, count)
        with store.connect() as con:
            for name, statement in asked.items():
                if con.execute(statement).fetchall() != answers[name]:
                    raise SystemExit(f"the answer to '{name}' at {count} segments is not that of the native table")
            measured = {name: best_ms(asking(con, q)) for name, q in asked.items()}
        measured |= measure_opening(store)
        results.append({"segments": count, "ms": measured})
    return results


def show(report: Result) -> None:
    """The tables, each number with its ratio to the native table."""
    heads = "".join(f"{h:>22}" for h in ("store", "native"))
    print(f"\nwriting {'batch':>8}{heads}{'ratio':>7}{'B/row':>8}{'native':>8}{'compacted':>11}")
    for r in report["writing"]:
        ours, native = r["store"], r["native"]
        print(
            f"        {r['batch']:>8,}{ours['rows_per_s']:>15,.0f} rows/s{native['rows_per_s']:>15,.0f} "
            f"rows/s"
            f"{ours['rows_per_s'] / native['rows_per_s']:>6.1f}x{ours['bytes_per_row']:>8.1f}"
            f"{native['bytes_per_row']:>8.1f}{r['compacted_bytes_per_row']:>11.1f}"
        )
    taken = report["import"]
    print(f"import: {taken['rows_per_s']:,.0f} rows/s, {taken['bytes_per_row']:.1f} B/row")
    native_ms = report["queries"][0]["ms"]
    names = list(report["queries"][-1]["ms"])
    print(f"\n{'query, ms (x native)':22}{'native':>9}" + "".join(f"{n:>11,} segm." for n in SEGMENTS))
    for name in names:
        line = f"{name:22}{native_ms[name]:>9.1f}" if name in native_ms else f"{name:22}{'':>9}"
        for r in report["queries"][1:]:
            ratio = f" ({r['ms'][name] / native_ms[name]:.0f}x)" if name in native_ms else ""
            text = f"{r['ms'][name]:.1f}{ratio}"
            line += f"{text:>17}"
        print(line)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the store beside a native DuckDB table.")
    add = parser.add_argument
    add("--rows", type=int, default=120_000, help="events in the query part (default 120,000)")
    add("--work", type=Path, help="where stores are written (default: a temporary directory)")
    add("--json", type=Path, help="write everything measured to this file")
    options = parser.parse_args(argv)
    report: Result = {"machine": machine(), "rows": options.rows}
    print(json.dumps(report["machine"]))
    table = make_rows(options.rows)
    pages = sum(len(p or ()) for p in table.column("pages").to_pylist())
    report["page_events"] = pages
    print(f"{options.rows:,} events with {pages:,} pages")
    with tempfile.TemporaryDirectory(prefix="kvwitness-bench-", dir=options.work) as work:
        report["writing"] = measure_writing(Path(work), table)
        report["import"] = measure_import(Path(work), table)
        report["queries"] = measure_queries(Path(work), table)
    report["load_after"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
