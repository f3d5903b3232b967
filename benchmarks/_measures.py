"""What `benchmarks/audit.py` measures, one function each; run alone in a process of its own.

    python -m benchmarks._measures NAME PAGE_EVENTS SEED WORK_DIR

prints one JSON object: page-events, rows, seconds of CPU and of wall time inside the measured part, the peak
of resident memory, and what was found. Making the trace is never part of the time, compilation neither.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
import polars as pl
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import _sim as sim  # noqa: E402
from benchmarks.pools import Chunk, Plan, Simulation, explode  # noqa: E402

PLANTED = 155
_COLD = np.ones(1 << 24, np.uint32)  # 64 MiB, more than the caches hold


class Clock:
    """Adds up CPU and wall time of the parts that are measured."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    @contextmanager
    def running(self, *, cold: bool = True) -> Iterator[None]:
        """Time a block; `cold` empties the processor's caches of the data first."""
        if cold:
            _COLD.sum()
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall


Measure = Callable[[Plan, Path, Clock], dict[str, Any]]


def read_ids(plan: Plan, _work: Path, clock: Clock) -> dict[str, Any]:
    """Nothing but reading the page ids: the bound that memory bandwidth sets."""
    simulation = Simulation(plan, rows=1 << 20, pages=1 << 23)
    _total(np.ones(8, np.uint32))
    total = 0
    for chunk in simulation.chunks():
        with clock.running():
            total += _total(chunk.pages)
    return _counts(simulation) | {"checksum": total}


def shadow(plan: Plan, _work: Path, clock: Clock) -> dict[str, Any]:
    """The least compiled shadow: one word per page, one simplified rule."""
    from tests.referee.numba_min import Shadow

    act_of = _acts()
    warm = Simulation(Plan(page_events=20_000, max_pages=500, shares=0.2, violations=2))
    _feed_all(Shadow(plan.pools, plan.pool_pages + 1), warm, act_of, Clock())
    simulation = Simulation(plan, rows=1 << 20, pages=1 << 23)
    state = Shadow(plan.pools, plan.pool_pages + 1)
    _feed_all(state, simulation, act_of, clock)
    return _counts(simulation) | _found(state.flagged(), simulation)


def _feed_all(state: Any, simulation: Simulation, act_of: Any, clock: Clock) -> None:
    for chunk in simulation.chunks():
        act = act_of[chunk.kind]
        tenant = np.where(chunk.request >= 0, simulation.tenant_of[chunk.request], -2).astype(np.int32)
        with clock.running():
            state.feed(chunk.row, act, chunk.pool, chunk.request, tenant, chunk.offsets, chunk.pages)


def _acts() -> Any:
    table = np.full(256, 255, np.uint8)
    table[[sim.ALLOC, sim.WRITE, sim.LAND, sim.READ, sim.SHARE]] = [0, 1, 1, 2, 3]
    return table


def replay(plan: Plan, _work: Path, clock: Clock) -> dict[str, Any]:
    """The product's kernel with the full shadow state, on encoded lists in memory."""
    return _replayed(plan, clock, whole=False)


def replay_from_arrow(plan: Plan, _work: Path, clock: Clock) -> dict[str, Any]:
    """The product's replay from Arrow batches: ordering, encoding and kernel."""
    return _replayed(plan, clock, whole=True)


def _replayed(plan: Plan, clock: Clock, *, whole: bool) -> dict[str, Any]:
    from benchmarks._product import KernelReplay

    warm = Plan(page_events=20_000, max_pages=500, shares=0.2, transfers=0.2, violations=2)
    _drive(KernelReplay(_overview(warm)), Simulation(warm), Clock(), whole=True)
    kernel = KernelReplay(_overview(plan))
    simulation = Simulation(plan)
    _drive(kernel, simulation, clock, whole=whole)
    suspects = kernel.suspects()
    planted = {p.row for p in simulation.planted}
    return _counts(simulation) | {
        "planted": len(planted),
        "planted_found": len(planted & suspects),
        "others": len(suspects - planted),
    }


def _drive(kernel: Any, simulation: Simulation, clock: Clock, *, whole: bool) -> None:
    for batch in simulation.batches():
        if whole:
            with clock.running():
                kernel.replay(kernel.encode(kernel.order(batch)))
        else:
            encoded = kernel.encode(kernel.order(batch))
            with clock.running():
                kernel.replay(encoded)


def _overview(plan: Plan) -> Iterator[pa.RecordBatch]:
    """What must be known of a trace before its replay; the trace is simulated for that alone."""
    from benchmarks import _pool_arrow as arrow

    simulation = Simulation(plan)
    chunks = simulation.chunks()
    yield arrow.header(plan, simulation.start_ns)
    yield arrow.to_batch(next(chunks), plan)
    for chunk in chunks:
        keep = np.flatnonzero((chunk.kind == sim.RECEIVED) | (chunk.kind == sim.FINISHED))
        if len(keep):
            columns = (
                getattr(chunk, name)[keep]
                for name in ("kind", "source", "seq", "time_ns", "request", "tenant", "pool", "a", "b", "c")
            )
            none = np.zeros(len(keep) + 1, np.int64)
            yield arrow.to_batch(Chunk(0, *columns, none, np.zeros(0, np.uint32)), plan)


def polars_rule(plan: Plan, _work: Path, clock: Clock) -> dict[str, Any]:
    """The simplified rule as a Polars query on exploded events in memory."""
    from tests.referee.polars_rule import flagged

    events, simulation = _exploded(plan)
    with clock.running():
        found = flagged(events.lazy())
    return _counts(simulation) | _found(found, simulation)


def duckdb_rule(plan: Plan, _work: Path, clock: Clock) -> dict[str, Any]:
    """The simplified rule as a DuckDB statement on exploded events in memory."""
    from tests.referee.duckdb_rule import flagged

    events, simulation = _exploded(plan)
    with clock.running():
        found = flagged(events)
    return _counts(simulation) | _found(found, simulation)


def _exploded(plan: Plan) -> tuple[pl.DataFrame, Simulation]:
    simulation = Simulation(plan)
    parts = [pl.DataFrame(explode(chunk, simulation.tenant_of)) for chunk in simulation.chunks()]
    return pl.concat(parts, rechunk=True), simulation


def ingest(plan: Plan, work: Path, clock: Clock) -> dict[str, Any]:
    """Writing the trace into a store, until every row is acknowledged."""
    from kvwitness.audit.store import Store

    path = work / "store"
    shutil.rmtree(path, ignore_errors=True)
    store = Store.create(path)
    simulation = Simulation(plan)
    with store.writer("bench") as writer:
        for batch in simulation.batches():
            with clock.running(cold=False):
                writer.append(batch)
        with clock.running(cold=False):
            writer.flush()
    size = sum(segment.bytes for segment in store.segments())
    counts = _counts(simulation)
    return counts | {"bytes": size, "segments": len(store.segments()), "bytes_per_row": size / counts["rows"]}


def audit(plan: Plan, work: Path, clock: Clock) -> dict[str, Any]:
    """The whole audit of the store that `ingest` left: from segments on disk to incidents."""
    from benchmarks._product import audit_store, summary

    warm = Plan(page_events=20_000, max_pages=500, shares=0.2, transfers=0.2, violations=2)
    ingest(warm, work / "warm", Clock())
    audit_store(work / "warm" / "store")
    with clock.running():
        run = audit_store(work / "store")
    peak = peak_rss_mib()
    told = summary(run)
    simulation = Simulation(plan)
    for _ in simulation.chunks():
        pass
    planted = {(p.request, p.source, p.seq) for p in simulation.planted}
    touched = {p.request for p in simulation.planted}
    return _counts(simulation) | {
        "peak_mib": peak,
        "planted": len(planted),
        "planted_found": len(planted & told.proofs),
        "others": len(told.requests - touched),
        "incidents": told.incidents,
        "findings": told.findings,
    }


MEASURES: dict[str, Measure] = {
    "ids": read_ids,
    "shadow": shadow,
    "replay": replay,
    "replay-arrow": replay_from_arrow,
    "polars": polars_rule,
    "duckdb": duckdb_rule,
    "ingest": ingest,
    "audit": audit,
}


@numba.njit(cache=True)
def _total(pages: Any) -> int:
    total = np.uint64(0)
    for page in pages:
        total += page
    return total


def _counts(simulation: Simulation) -> dict[str, Any]:
    return {"page_events": simulation.page_events, "rows": simulation.event_rows}


def _found(flagged: pl.DataFrame, simulation: Simulation) -> dict[str, Any]:
    """How many reads were flagged, and whether they are exactly the planted ones."""
    truth = {(p.row, (int(p.pool[4:].split("/")[0]) - 1) << 32 | p.page) for p in simulation.planted}
    found = set(flagged.select("ev", "slot").iter_rows())
    digest = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:16]
    return {"flagged": len(found), "as_planted": found == truth, "digest": digest}


def peak_rss_mib() -> float:
    """The most memory that this process ever held; Linux counts it from the start of the program."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main(argv: list[str]) -> int:
    name, page_events, seed, work = argv
    base = peak_rss_mib()
    os.environ["KVWITNESS_KERNEL"] = "compiled"  # also for the small trace that warms up
    plan = Plan(page_events=int(page_events), seed=int(seed), violations=PLANTED)
    clock = Clock()
    result = MEASURES[name](plan, Path(work), clock)
    result = {"peak_mib": peak_rss_mib(), "base_mib": base, "cpu_s": clock.cpu, "wall_s": clock.wall} | result
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
