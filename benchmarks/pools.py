"""Large synthetic traces of healthy, aged page pools, with planted violations on request.

Requests of ten to ten thousand pages (log-uniform) live side by side in a few pools: the prompt is allocated
in one piece, decode grows one page at a time in between the others, and pages return in reverse to the tail
of a first-in-first-out queue. Such a pool ages: after a while neighbours in a page list are hardly ever
neighbours in memory. By default the queue starts shuffled, so that a short trace is as aged as a long one.

    for batch in Simulation(Plan(page_events=5_000_000)).batches():   # Arrow, the event schema
        ...
    python -m benchmarks.pools --page-events 5000000 --out trace.jsonl

One plan and seed always give the same events. A *page-event* is one page touched by one event.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks import _pool_arrow as arrow
from benchmarks import _sim as sim


@dataclass(frozen=True)
class Plan:
    """What to simulate. `shares` and `transfers` are fractions of the requests, between 0 and 1."""

    page_events: int
    """Requests are admitted until about this many page-events are spoken for; then all run to their end."""
    seed: int = 1
    pools: int = 4
    pool_pages: int = 50_000
    tenants: int = 200
    min_pages: int = 10
    max_pages: int = 10_000
    in_flight: int = 24
    page_tokens: int = 16
    decode_share: float = 0.07
    """Mean share of a request's pages that decode adds one at a time."""
    shares: float = 0.0
    """Requests that attach to a published prefix, or publish one."""
    transfers: float = 0.0
    """Requests that are prefilled in one pool and decoded in another."""
    violations: int = 0
    """Planted reads: alternately of a page not yet written and of a stranger's page."""
    aged: bool = True

    def __post_init__(self) -> None:
        cached = sim.ENTRIES * sim.PREFIX_PAGES if self.shares else 0
        if not 4 <= self.min_pages <= self.max_pages <= self.pool_pages - cached:
            raise ValueError(
                f"needs 4 <= min_pages <= max_pages <= {self.pool_pages - cached} (pool_pages"
                f"{' less the reuse cache' if cached else ''}); got {self.min_pages} and {self.max_pages}"
            )
        if not 1 <= self.pools <= 200:
            raise ValueError(f"needs 1 to 200 pools; got {self.pools}")


@dataclass(frozen=True)
class Planted:
    """Ground truth of one planted read."""

    rule: str
    """The rule that must fire: `unwritten-page-read` or `foreign-page-read`."""
    row: int
    """0-based position of the event in the whole trace."""
    source: str
    seq: int
    pool: str
    page: int
    request: str
    tenant: str
    other_request: str | None
    other_tenant: str | None
    """Whose content it was; None for a page that was not yet written (whoever had it before)."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows as flat arrays; row i owns `pages[offsets[i]:offsets[i + 1]]`.

    `kind` and the meaning of `a`, `b`, `c` are those of the simulation; codes are indices (`source` = pool
    index, or the number of pools for the gateway); -1 means absent. A transfer's row lists source pages, then
    as many destination pages.
    """

    row: int
    kind: NDArray[np.uint8]
    source: NDArray[np.uint8]
    seq: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    request: NDArray[np.int64]
    tenant: NDArray[np.int32]
    pool: NDArray[np.int16]
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    c: NDArray[np.int64]
    offsets: NDArray[np.int64]
    pages: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.kind)


class Simulation:
    """One run of a plan. Consume `chunks()` or `batches()` once; `planted` is complete afterwards."""

    HEADER_ROWS = 3  # per pool: policy, limits, clock

    def __init__(self, plan: Plan, *, rows: int = 65_536, pages: int = 2_000_000) -> None:
        """`rows` and `pages` bound one chunk (it may exceed `pages` by three times the largest request)."""
        self.plan = plan
        self.rows, self.pages = rows, pages
        self._state = _new_state(plan, rows + 16, pages + 3 * plan.max_pages + 4 * sim.PREFIX_PAGES)
        self.start_ns = int(self._state.globals[sim.TIME])
        self.tenant_of: NDArray[np.int32] = np.zeros(0, np.int32)
        """Tenant code per request code, as far as the run has come."""

    def chunks(self) -> Iterator[Chunk]:
        """The events as flat arrays, without the header rows that describe the pools."""
        st, more, row = self._state, True, self.HEADER_ROWS * self.plan.pools
        while more:
            more = sim.run(st, self.rows, self.pages)
            n, m = int(st.globals[sim.OUT_ROWS]), int(st.globals[sim.OUT_PAGES])
            if n:
                chunk = _copy_out(row, st.rows[:n], st.pages[:m])
                self._learn_tenants(chunk)
                row += n
                yield chunk

    def _learn_tenants(self, chunk: Chunk) -> None:
        received = chunk.kind == sim.RECEIVED
        self.tenant_of = np.concatenate([self.tenant_of, chunk.tenant[received]])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The events in the event schema, the description of the pools first."""
        yield arrow.header(self.plan, self.start_ns)
        for chunk in self.chunks():
            yield arrow.to_batch(chunk, self.plan)

    @property
    def planted(self) -> list[Planted]:
        count = int(self._state.globals[sim.PLANTED])
        return [_planted(*map(int, row)) for row in self._state.planted[:count]]

    @property
    def page_events(self) -> int:
        """Page-events so far."""
        return int(self._state.globals[sim.PAGE_EVENTS])

    @property
    def event_rows(self) -> int:
        """Rows so far, those that describe the pools included."""
        return int(self._state.globals[sim.ROWS])

    @property
    def requests(self) -> int:
        """Requests so far."""
        return int(self._state.globals[sim.REQUESTS])


def explode(chunk: Chunk, tenant_of: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Columns for a one-rule referee: one row per page of every alloc, write, read and share.

    `ev` int64 position of the event, `slot` int64 = pool << 32 | page, `act` uint8 (0 alloc, 1 write, 2 read,
    3 share), `request` int64, `tenant` int32 (the request's).
    """
    act_of = np.full(14, 255, np.uint8)
    act_of[[sim.ALLOC, sim.WRITE, sim.LAND, sim.READ, sim.SHARE]] = [0, 1, 1, 2, 3]
    act = act_of[chunk.kind]
    counts = np.where(act < 255, np.diff(chunk.offsets), 0)
    keep = np.repeat(act < 255, np.diff(chunk.offsets))
    pool = np.repeat(chunk.pool.astype(np.int64), counts)
    request = np.repeat(chunk.request, counts)
    return {
        "ev": np.repeat(np.arange(chunk.row, chunk.row + len(chunk), dtype=np.int64), counts),
        "slot": pool << 32 | chunk.pages[keep].astype(np.int64),
        "act": np.repeat(act, counts),
        "request": request,
        "tenant": tenant_of[request],
    }


def mean_run(chunk: Chunk) -> float:
    """Mean length of runs of consecutive page ids inside page lists: 1.0 is a fully aged pool."""
    steps = np.diff(chunk.pages.astype(np.int64)) == 1
    starts = np.unique(chunk.offsets)
    steps[starts[(starts > 0) & (starts < len(chunk.pages))] - 1] = False
    return len(chunk.pages) / max(1, len(chunk.pages) - int(steps.sum()))


def _planted(*field: int) -> Planted:
    kind, row, source, seq, pool, page, request, tenant, other_request, other_tenant = field
    return Planted(
        rule="unwritten-page-read" if kind == sim.UNWRITTEN else "foreign-page-read",
        row=row,
        source=arrow.source_name(source),
        seq=seq,
        pool=arrow.pool_name(pool),
        page=page,
        request=arrow.request_name(request),
        tenant=arrow.tenant_name(tenant),
        other_request=arrow.request_name(other_request) if other_request >= 0 else None,
        other_tenant=arrow.tenant_name(other_tenant) if other_tenant >= 0 else None,
    )


def _copy_out(row: int, rows: NDArray[np.int64], pages: NDArray[np.uint32]) -> Chunk:
    kinds = {sim.KIND: np.uint8, sim.SOURCE: np.uint8, sim.TENANT_CODE: np.int32, sim.POOL_CODE: np.int16}
    columns = [rows[:, i].astype(kinds.get(i, np.int64)) for i in range(sim.END)]
    return Chunk(row, *columns, np.concatenate([np.zeros(1, np.int64), rows[:, sim.END]]), pages.copy())


def _new_state(plan: Plan, rows: int, pages: int) -> sim.State:
    spread = np.linspace(np.log(plan.min_pages), np.log(plan.max_pages + 1), 4096, endpoint=False)
    rings = np.tile(np.arange(1, plan.pool_pages + 1, dtype=np.uint32), (plan.pools, 1))
    if plan.aged:
        shuffle = np.random.Generator(np.random.PCG64(plan.seed)).shuffle
        for ring in rings:
            shuffle(ring)
    state = sim.State(
        globals=np.zeros(sim.SEQS + plan.pools + 1, np.int64),
        sizes=np.exp(spread).astype(np.int64),
        slots=np.zeros((plan.in_flight, 14), np.int64),
        tables=np.zeros((2 * plan.in_flight, plan.max_pages + 1), np.uint32),
        pools=np.zeros((plan.pools, 3), np.int64),
        rings=rings,
        entries=np.zeros((plan.pools * sim.ENTRIES, 4), np.int64),
        entry_pages=np.zeros((plan.pools * sim.ENTRIES, sim.PREFIX_PAGES), np.uint32),
        planted=np.zeros((plan.violations, 10), np.int64),
        rows=np.zeros((rows, sim.END + 1), np.int64),
        pages=np.zeros(pages, np.uint32),
    )
    state.pools[:, sim.COUNT] = plan.pool_pages
    state.globals[sim.SEQS : sim.SEQS + plan.pools] = Simulation.HEADER_ROWS
    for column, value in {
        sim.RNG: plan.seed * 0x9E3779B97F4A7C15 % 2**63,
        sim.TIME: 1_789_000_000_000_000_000,
        sim.ROWS: Simulation.HEADER_ROWS * plan.pools,
        sim.TARGET: plan.page_events,
        sim.TO_PLANT: plan.violations,
        sim.SHARE_PPM: round(plan.shares * 1e6),
        sim.TRANSFER_PPM: round(plan.transfers * 1e6),
        sim.TENANTS: plan.tenants,
        sim.PAGE_TOKENS: plan.page_tokens,
        sim.DECODE_PPM: round(plan.decode_share * 1e6),
    }.items():
        state.globals[column] = value
    return state


def main(argv: list[str] | None = None) -> int:
    """Write a trace as JSON Lines, and its ground truth beside it."""
    from kvwitness.audit.trace import write_jsonl

    parser = argparse.ArgumentParser(prog="python -m benchmarks.pools", description="Write a trace.")
    parser.add_argument("--out", required=True, help="trace to write; the ground truth goes to FILE.truth")
    for name, value in asdict(Plan(page_events=1_000_000)).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=value)
        else:
            parser.add_argument(flag, type=type(value), default=value)
    options = vars(parser.parse_args(argv))
    path = options.pop("out")
    simulation = Simulation(replace(Plan(page_events=1), **options))
    with open(path, "wb") as file:
        for batch in simulation.batches():
            write_jsonl(pa.Table.from_batches([batch]), file)
    with open(f"{path}.truth", "w", encoding="utf-8") as file:
        json.dump([asdict(p) for p in simulation.planted], file, indent=1)
    print(f"{simulation.requests} requests, {simulation.page_events} page-events -> {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
