"""How long each page of the dashboard takes on a generated store, while a collector goes on writing into it.

    python benchmarks/dashboard.py                                # a million page events
    python benchmarks/dashboard.py --page-events 200M --requests 2M --work DIR

Each page is run as the server runs it, first with nothing of the store in memory, then again as by the next viewer.
The targets, at 200 M page events and 2 M requests on two cores: the first view under 2 s, any page under 3 s after
that, and under 1.5 GB of memory. What the browser draws afterwards is not in it. CPU time says more than wall time
where other work goes on. The store is that of `benchmarks/queries.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.audit import machine  # noqa: E402
from benchmarks.queries import number, prepared  # noqa: E402

PAGES = ["overview", "incidents", "incident", "page_map", "requests", "one request", "limits", "tenants", "health"]
_BATCH, _EVERY_S = 500, 0.05
"""The collector writes so many events, so often: ten thousand a second."""


def looked_at(store: Path, results: Any) -> None:
    """Open every page twice, and report (page, times, the most memory in use so far, in bytes)."""
    os.environ["KVWITNESS_STORE"] = str(store)
    from streamlit.testing.v1 import AppTest

    from kvwitness.audit.store import Store
    from kvwitness.dashboards.settings import APP

    nothing = Store.create(Path(tempfile.mkdtemp()) / "store")
    os.environ["KVWITNESS_STORE"] = str(nothing.path)
    opened(AppTest, APP, "overview", {})  # what a server has loaded once it has shown anything
    os.environ["KVWITNESS_STORE"] = str(store)
    incident = Store.open(store).result("incidents").drop_nulls("request").row(0, named=True)
    about = {
        "incident": ("incident", {"incident": incident["incident"]}),
        "one request": ("requests", {"request": incident["request"]}),
    }
    for page in PAGES:
        script, query = about.get(page, (page, {}))
        took = [opened(AppTest, APP, script, query) for _ in range(2)]
        results.put((page, took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    results.put(None)


def opened(driver: Any, app: Path, script: str, query: dict[str, str]) -> tuple[float, float]:
    """Seconds until a new viewer has the whole page, and of CPU time (of all threads)."""
    viewer = driver.from_file(str(app), default_timeout=600)
    viewer.switch_page(f"screens/{script}.py")
    for name, value in query.items():
        viewer.query_params[name] = value
    begun, used = time.perf_counter(), time.process_time()
    viewer.run()
    took = time.perf_counter() - begun, time.process_time() - used
    if viewer.exception or viewer.error:
        raise AssertionError(f"{script}: {[e.value for e in (*viewer.exception, *viewer.error)]}")
    return took


def told(results: Any, viewer: Any) -> Iterator[tuple[str, Any, int]]:
    """What the viewer reports, until it has no more."""
    while True:
        try:
            report = results.get(timeout=5)
            if report is None:
                return
            yield report
        except queue.Empty:
            if not viewer.is_alive():
                raise SystemExit("the viewer ended early") from None


def tidied(store: Path, stop: Any) -> None:
    """What collectors that stay do beside their writing: merge small segments where there are many."""
    from kvwitness.audit.store import Store

    opened = Store.open(store)
    while not stop.wait(1.0):
        if opened.compaction_due():
            opened.compact()


def written(store: Path, stop: Any) -> None:
    """A collector: events of a source of its own, again and again."""
    import pyarrow as pa

    from kvwitness.audit.store import Store

    seq = 0
    with Store.open(store).writer("bench-collector") as writer:
        while not stop.is_set():
            seqs = list(range(seq, seq + _BATCH))
            events = {
                "time_ns": pa.array([time.time_ns()] * _BATCH, pa.int64()),
                "event": pa.array(["request.received"] * _BATCH),
                "source": pa.array(["bench/0"] * _BATCH),
                "seq": pa.array(seqs, pa.int64()),
                "request": pa.array([f"late-{n}" for n in seqs]),
                "tenant": pa.array(["t-late"] * _BATCH),
            }
            writer.append(pa.table(events))
            writer.flush()
            seq += _BATCH
            stop.wait(_EVERY_S)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--page-events", type=number, default=1_000_000)
    add("--requests", type=number, default=10_000, help="about so many")
    add("--audit-up-to", type=number, default=5_000_000, help="page events up to which the store itself is audited")
    add("--work", type=Path, help="where the store is written and kept (default: a temporary directory)")
    options = parser.parse_args(argv)
    print(json.dumps(machine()))
    with tempfile.TemporaryDirectory(prefix="kvwitness-bench-", dir=options.work) as scratch:
        store = prepared(
            (options.work or Path(scratch)) / "store",
            Path(scratch),
            options.page_events,
            options.requests,
            options.audit_up_to,
        )
        processes = multiprocessing.get_context("spawn")
        stop, results = processes.Event(), processes.Queue()
        collector = processes.Process(target=written, args=(store.path, stop), daemon=True)
        viewer = processes.Process(target=looked_at, args=(store.path, results), daemon=True)
        compactor = processes.Process(target=tidied, args=(store.path, stop), daemon=True)
        collector.start()
        compactor.start()
        viewer.start()
        print(f"{'page':16}{'at first':>10}{'CPU':>8}{'again':>10}{'CPU':>8}{'memory so far':>18}")
        for page, seen, memory in told(results, viewer):
            (cold, cold_cpu), (warm, warm_cpu) = seen
            times = f"{cold:>8.2f} s{cold_cpu:>6.2f} s{warm:>8.2f} s{warm_cpu:>6.2f} s"
            print(f"{page:16}{times}{memory / 2**20:>14,.0f} MiB", flush=True)
        viewer.join(60)
        stop.set()
        collector.join(60)
        compactor.join(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
