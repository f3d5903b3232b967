"""Latency of each incident query on a generated store.

    python benchmarks/queries.py                                # a million page events
    python benchmarks/queries.py --page-events 200M --requests 2M --work DIR

The target: under 3 s each on two cores at 200 M page events and 2 M requests, under 1 s for one request, page or
incident. A store of that size takes hours to audit in some environments; beyond `--audit-up-to` page events the results
are those of the audit of a small store of the same kind, repeated under new names until they are as many per request.
A store that is left in `--work` is used again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.audit import machine  # noqa: E402
from benchmarks.pools import Plan, Simulation  # noqa: E402
from kvwitness.audit.asking import connect, run  # noqa: E402
from kvwitness.audit.queries import queries  # noqa: E402
from kvwitness.audit.runs import audit_store  # noqa: E402
from kvwitness.audit.store import Store  # noqa: E402

LOOKUPS = {"could_have_read", "request_timeline", "page_touches"}
"""Queries about one request or page."""
_UNITS = {"k": 1_000, "M": 1_000_000}
_SMALL = 300_000
_NAMES = ("request", "other_request")


def number(text: str) -> int:
    """`200M` as a number."""
    return int(float(text.rstrip("kM")) * _UNITS.get(text[-1], 1))


def plan(page_events: int, requests: int) -> Plan:
    """A simulation with about so many page events per request, on average 4.8 for each of its pages."""
    mean = max(8.0, page_events / requests / 4.8)
    largest = 8
    while (largest - 4) / math.log(largest / 4) < mean:
        largest += 1
    return Plan(
        page_events, pools=4, min_pages=4, max_pages=largest, in_flight=64, shares=0.2, transfers=0.3, violations=155
    )


def generated(path: Path, wanted: Plan) -> Store:
    """A store of the simulation's events; one that is there already is taken as it is."""
    if (path / "manifest.json").exists():
        return Store.open(path)
    store = Store.create(path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from Simulation(wanted).batches()

    store.import_batches(batches(), sha256="0" * 64, name="bench")
    return store


def repeated_results(store: Store, small: Store) -> None:
    """Results for a store of many requests from those of a small one."""
    events = store.events(["request", "tenant", "event"]).filter(pl.col("event") == "request.received")
    known = events.select("request", "tenant").unique("request").sort("request").collect(engine="streaming")
    tables = {name: small.result(name) for name in small.result_runs()[-1].tables}
    times = max(1, known.height // max(1, tables["request_verdicts"].height))
    verdicts = known.with_columns(
        pl.lit(0, pl.Int32).alias("incarnation"),
        pl.lit("clean").alias("verdict"),
        pl.lit(None, pl.String).alias("missing"),
    )
    tables["request_verdicts"] = verdicts.select(tables["request_verdicts"].columns)
    for name in ("findings", "incidents", "read_causes", "unsound_reads", "request_index"):
        tables[name] = pl.concat([_renamed(tables[name], n) for n in range(times)])
    store.put_result("repeated", tables)


def _renamed(frame: pl.DataFrame, copy: int) -> pl.DataFrame:
    """The rows for other requests: every so many numbers further on."""
    if copy == 0:
        return frame
    names = [n for n in _NAMES if n in frame.columns]
    if "incident" in frame.columns:
        named = [f"inc-{copy:06d}{name[-6:]}" for name in frame["incident"].to_list()]
        frame = frame.with_columns(pl.Series("incident", named))
    return frame.with_columns(
        [
            (
                pl.col(n).str.slice(0, 1)
                + (pl.col(n).str.slice(1).cast(pl.Int64) + 20_000 * copy).cast(pl.String).str.zfill(8)
            )
            for n in names
        ]
    )


def prepared(store: Path, scratch: Path, page_events: int, requests: int, audit_up_to: int) -> Store:
    """A generated store with results: its own, or beyond `audit_up_to` page events those of a small one, repeated."""
    made = generated(store, plan(page_events, requests))
    if made.result_runs():
        return made
    if page_events <= audit_up_to:
        audit_store(made)
    else:
        small = generated(scratch / "small", plan(_SMALL, _SMALL * requests // page_events))
        audit_store(small)
        repeated_results(made, small)
    return made


def measure(store: Store, times: int) -> list[dict[str, Any]]:
    """Least wall time of each query over several runs, each on a connection of its own, and the rows it gave."""
    with connect(store) as con:
        request, pool, page = con.execute(
            "SELECT request, pool, pages[1] FROM events WHERE event = 'page.read' LIMIT 1 OFFSET 1000"
        ).fetchall()[0]
        tenant = con.execute("SELECT tenant FROM events WHERE tenant IS NOT NULL LIMIT 1").fetchall()[0][0]
        longest = con.execute("SELECT max(prompt_tokens) FROM events").fetchall()[0][0]
    values = {
        "request_id": request, "tenant_id": tenant, "pool_name": pool, "page_id": page, "over": (longest or 0) * 9 // 10
    }  # fmt: skip
    results = []
    for query in queries().values():
        given = {p.name: values[p.name] for p in query.parameters if p.name in values}
        least, cpu = float("inf"), float("inf")
        for _ in range(times):
            with connect(store) as con:
                begun, used = time.perf_counter(), time.process_time()
                frame, _more = run(con, query, given)
                least, cpu = min(least, time.perf_counter() - begun), min(cpu, time.process_time() - used)
            if least > 5:
                break
        results.append({"query": query.name, "s": least, "cpu_s": cpu, "rows": frame.height, "scan": query.scan})
        show(results[-1])
    return results


def show(result: dict[str, Any]) -> None:
    """One line; CPU time (of all threads) says more than wall time where other work goes on."""
    target = 1.0 if result["query"] in LOOKUPS else 3.0
    remark = "scan" if result["scan"] else ("" if result["s"] <= target else f"over {target:g} s")
    print(
        f"{result['query']:28}{result['s']:9.3f} s {result['cpu_s']:9.3f} s CPU {result['rows']:>9,} rows  {remark}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--page-events", type=number, default=1_000_000)
    add("--requests", type=number, default=10_000, help="about so many")
    add("--audit-up-to", type=number, default=5_000_000, help="page events up to which the store itself is audited")
    add("--times", type=int, default=3, help="runs of each query; the quickest counts")
    add("--work", type=Path, help="where the store is written and kept (default: a temporary directory)")
    add("--json", type=Path, help="write everything measured to this file")
    options = parser.parse_args(argv)
    print(json.dumps(machine()))
    with tempfile.TemporaryDirectory(prefix="kvwitness-bench-", dir=options.work) as scratch:
        work = options.work or Path(scratch)
        begun = time.perf_counter()
        store = prepared(work / "store", Path(scratch), options.page_events, options.requests, options.audit_up_to)
        print(f"store ready after {time.perf_counter() - begun:.0f} s")
        with store.connect() as con:
            facts = con.execute(
                "SELECT count(*), sum(len(pages))::BIGINT, count(DISTINCT request) FROM events"
            ).fetchall()[0]
        results = measure(store, options.times)
    print(f"{facts[0]:,} events, {facts[1]:,} page events, {facts[2]:,} requests")
    if options.json:
        report = {"machine": machine(), "events": facts, "queries": results}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
