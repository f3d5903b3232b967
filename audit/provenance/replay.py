"""Driving the kernel: its tables, their growth, and what it hands back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvwitness.audit.provenance import jit, reclaim
from kvwitness.audit.provenance.encode import Encoded, Encoder
from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.tables import Tables

I64 = npt.NDArray[np.int64]

ORPHAN_BOUND_NS = 600 * 1_000_000_000
FACT_ROWS = 1 << 12
FACT_PAGES = 1 << 14
BATCH_PAGES = 1 << 22
"""About so many pages are encoded at a time."""
RECLAIM_PAGES = 1 << 21
"""Page entries of transfers, shares, publications and open reads that are kept without a second look."""

_KERNEL = "kvwitness.audit.provenance.kernel."

_NONE = {
    k.PAGE: ("owner", "next", "writer", "lgen", "lev", "origin", "step", "ord"),
    k.COLD: k.COLD.names or (),
    k.PAIR: ("pending0", "pending1", "share", "transfer", "read", "source"),
    k.TRANSFER_ID: ("head", "lease"),
}
"""Fields that are -1 in a fresh record."""


@cache
def kernel(compiled: bool) -> Callable[..., int]:
    """The kernel's entry, compiled or interpreted.

    Both forms may be wanted in one process, so each gets modules of its own: what the functions call is settled when
    their module is loaded.
    """
    for name in [m for m in sys.modules if m.startswith(_KERNEL) and not m.endswith(".layout")]:
        del sys.modules[name]
    jit.compiling = compiled
    entry: Callable[..., int] = import_module(_KERNEL + "run").run
    return entry


class Replay:
    """The shadow state of every page of a trace, brought forward batch by batch.

    Events go in through `feed` in replay order; `take_facts` returns what was not plainly sound since it was last
    asked. `compiled` chooses the form of the kernel (see `kvwitness.audit.provenance.jit`).
    """

    def __init__(self, encoder: Encoder, *, orphan_bound_ns: int = ORPHAN_BOUND_NS, compiled: bool = True) -> None:
        self.encoder = encoder
        self._run = kernel(compiled)
        self._tables = Tables(compiled)
        pools = encoder.pools.table
        names = pools.dtype.names or ()
        self._pools = self._tables.from_columns(k.POOL, {n: pools[n] for n in names}, len(pools))
        self._bases, sizes = pools["base"], pools["size"]
        self._s = self._make(k.PAGE, max(int(sizes.sum()), 1))
        self._c = self._make(k.COLD, max(int(sizes.sum()), 1))
        for base, size, known in zip(pools["base"].tolist(), sizes.tolist(), pools["known"].tolist(), strict=True):
            if known:
                self._mark_known(base, size)
        self._layers, self._nodes = self._make(k.LAYER, 1 << 10), self._make(k.OPEN_WRITE, 1 << 10)
        self._actors, self._holders = self._make(k.ACTOR, 0), -1
        self._pairs = self._make(k.PAIR, 64)
        self._shares, self._share_pages = self._make(k.SHARE, 64), self._make(k.SHARE_PAGE, 256)
        self._pubs, self._pub_pages = self._make(k.PUBLICATION, 64), self._make(k.PUBLICATION_PAGE, 256)
        self._keys = np.full(64, -1, np.int64)
        self._transfers, self._transfer_pages = self._make(k.TRANSFER, 64), self._make(k.TRANSFER_PAGE, 256)
        self._transfer_ids = self._make(k.TRANSFER_ID, 64)
        self._reads, self._read_pages = self._make(k.READ, 64), self._make(k.READ_PAGE, 256)
        self._steps = self._make(k.STEP, k.N_STEPS)
        self._scratch = self._make(k.PIECE, 2 * (int(pools["tokens"].max(initial=1)) + 8))
        self._fact_rows, self._fact_pages = self._make(k.FACT, FACT_ROWS), self._make(k.FACT_PAGE, FACT_PAGES)
        self._orphan_ns = orphan_bound_ns
        self.upto = 0
        """The first event (`ev`) that has not been replayed."""
        start = {"layer_free": -1, "node_free": -1, "orphan_ns": orphan_bound_ns}
        self._counters = self._tables.make(k.COUNTERS, 1, start)
        self._drained: list[pl.DataFrame] = []
        self._reclaim_at = RECLAIM_PAGES

    def _make(self, dtype: np.dtype[np.void], n: int) -> Any:
        return self._tables.make(dtype, n, dict.fromkeys(_NONE.get(dtype, ()), -1))

    def _grown(self, table: Any, needed: int, dtype: np.dtype[np.void]) -> Any:
        return self._tables.taller(table, needed, dtype, dict.fromkeys(_NONE.get(dtype, ()), -1))

    def _mark_known(self, base: int, size: int) -> None:
        if self._tables.compiled:
            self._s["flags"][base : base + size] = k.PF_KNOWN
        else:
            for page in self._s[base : base + size]:
                page.flags = k.PF_KNOWN

    @property
    def page_events(self) -> int:
        """Pages touched by events so far."""
        return int(self._tables.column(self._counters, "page_events")[0])

    def _count(self, name: str) -> int:
        return int(self._tables.column(self._counters, name)[0])

    def used(self, table: str) -> int:
        """How many rows of one of its tables the kernel has filled."""
        counted = table.removeprefix("_")
        if counted in (k.COUNTERS.names or ()) and counted != "steps":
            return self._count(counted)
        return len(getattr(self, table))

    def feed(self, events: pl.DataFrame) -> None:
        """Replay the events of a frame in replay order (columns `encode.COLUMNS`)."""
        lists = pl.sum_horizontal(pl.col("pages", "src_pages", "dst_pages").list.len().cast(pl.Int64).fill_null(0))
        piece = events.select((lists.cum_sum() // BATCH_PAGES).alias("piece"))["piece"].to_numpy()
        cuts = np.flatnonzero(np.diff(piece)) + 1
        for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(events)], strict=True):
            if end > start:
                part = events.slice(start, end - start)
                self.replay(self.encoder.encode(part))
                self.reclaim(int(part["ref_ns"][-1]))

    def replay(self, batch: Encoded) -> None:
        """Replay an encoded batch."""
        self._take_actors()
        self._make_room(batch)
        tables = self._tables
        events = tables.from_columns(k.EVENT, batch.columns, batch.count)
        lists = [tables.flat(a) for a in (batch.pages, batch.second_pages, batch.generations)]
        tables.put(self._counters, 0, ev0=batch.first_ev)
        at = 0
        while at < batch.count:
            done = self._run(
                events, at, batch.count, *lists, self._s, self._c, self._layers, self._nodes, self._actors, self._pairs,
                self._pools, self._shares, self._share_pages, self._pubs, self._pub_pages, self._keys, self._transfers,
                self._transfer_pages, self._transfer_ids, self._reads, self._read_pages, self._steps, self._scratch,
                self._fact_rows, self._fact_pages, self._counters,
            )  # fmt: skip
            if done < batch.count:
                self._drain()
                self._grow(batch, done)
            at = done
        self.upto = batch.first_ev + batch.count

    def _take_actors(self) -> None:
        """The encoder may have met holders that the table does not have yet; what was learnt about actors stays."""
        actors = self.encoder.actors
        known = len(actors.holders)
        if known == self._holders and len(self._actors) == actors.capacity + len(actors.requests):
            return
        self._holders = known
        columns = actors.columns()
        learnt = self._tables.column(self._actors, "tainted")
        columns["tainted"][: len(learnt)] = learnt
        self._actors = self._tables.from_columns(k.ACTOR, columns, len(columns["tenant"]))

    def reclaim(self, now_ns: int) -> None:
        """Drop what is kept of requests that ended longer ago than the orphan bound, when it has become much."""
        sizes = [self._count(name) for name in ("transfer_pages", "share_pages", "pub_pages", "read_pages")]
        if not self._tables.compiled or sum(sizes) < self._reclaim_at:
            return
        end = self._tables.column(self._actors, "end")
        ended = (end >= 0) & (end < now_ns - self._orphan_ns)
        pairs = self._pairs
        kept, pages, numbers = reclaim.transfers(*self._used("transfers", "transfer_pages"), ended)
        self._keep("transfers", kept, "transfer_pages", pages)
        pairs["transfer"], pairs["source"] = numbers[pairs["transfer"]], numbers[pairs["source"]]
        self._transfer_ids["head"] = numbers[self._transfer_ids["head"]]
        kept, pages, numbers = reclaim.shares(*self._used("shares", "share_pages"), ended)
        self._keep("shares", kept, "share_pages", pages)
        pairs["share"] = numbers[pairs["share"]]
        kept, pages, numbers = reclaim.reads(*self._used("reads", "read_pages"), ended)
        self._keep("reads", kept, "read_pages", pages)
        pairs["read"] = numbers[pairs["read"]]
        kept, pages, numbers = reclaim.publications(*self._used("pubs", "pub_pages"), self._s, self._bases)
        self._keep("pubs", kept, "pub_pages", pages)
        self._keys = numbers[self._keys]
        left = sum(self._count(name) for name in ("transfer_pages", "share_pages", "pub_pages", "read_pages"))
        self._reclaim_at = max(RECLAIM_PAGES, 2 * left)

    def _used(self, records: str, pages: str) -> tuple[Any, Any]:
        """The used rows of a table of records and of its page entries."""
        return getattr(self, f"_{records}")[: self._count(records)], getattr(self, f"_{pages}")[: self._count(pages)]

    def _keep(self, records: str, kept: Any, pages: str, kept_pages: Any) -> None:
        for name, rows in ((records, kept), (pages, kept_pages)):
            table = self._make(rows.dtype, max(256, len(rows)))
            table[: len(rows)] = rows
            setattr(self, f"_{name}", table)
            self._tables.put(self._counters, 0, **{name: len(rows)})

    def _make_room(self, batch: Encoded) -> None:
        """Tables that are only appended to get room for the whole batch at once."""
        columns = batch.columns
        kind = columns["kind"]

        def rows(wanted: tuple[int, ...], column: str | None = None) -> int:
            which = np.isin(kind, wanted)
            return int(which.sum()) if column is None else int(columns[column][which].sum())

        moves = (k.K_OFFER, k.K_BEGIN)
        self._pairs = self._grown(self._pairs, len(self.encoder.pairs), k.PAIR)
        self._transfer_ids = self._grown(self._transfer_ids, len(self.encoder.transfers.codes), k.TRANSFER_ID)
        keys = len(self.encoder.keys.codes)
        if keys > len(self._keys):
            self._keys = np.concatenate([self._keys, np.full(keys, -1, np.int64)])
        self._shares = self._grown(self._shares, self._count("shares") + rows((k.K_SHARE,)), k.SHARE)
        pages = self._count("share_pages") + rows((k.K_SHARE,), "p_n")
        self._share_pages = self._grown(self._share_pages, pages, k.SHARE_PAGE)
        self._pubs = self._grown(self._pubs, self._count("pubs") + rows((k.K_PUBLISH,)), k.PUBLICATION)
        pages = self._count("pub_pages") + rows((k.K_PUBLISH,), "p_n") + 1
        self._pub_pages = self._grown(self._pub_pages, pages, k.PUBLICATION_PAGE)
        self._transfers = self._grown(self._transfers, self._count("transfers") + rows(moves), k.TRANSFER)
        pages = self._count("transfer_pages") + rows(moves, "p_n") + rows(moves, "q_n")
        self._transfer_pages = self._grown(self._transfer_pages, pages, k.TRANSFER_PAGE)
        kept = (kind == k.K_READ) & (columns["flags"] & k.F_RECORD != 0)
        self._reads = self._grown(self._reads, self._count("reads") + int(kept.sum()), k.READ)
        pages = self._count("read_pages") + int(columns["p_n"][kept].sum())
        self._read_pages = self._grown(self._read_pages, pages, k.READ_PAGE)

    def _grow(self, batch: Encoded, at: int) -> None:
        """Give the tables that faults fill room for event `at`."""
        n = int(batch.columns["p_n"][at] + batch.columns["q_n"][at])
        depth = self._count("depth") + 2
        self._fact_rows = self._grown(self._fact_rows, 4 * n + 128, k.FACT)
        self._fact_pages = self._grown(self._fact_pages, 3 * n * depth + 128, k.FACT_PAGE)
        self._layers = self._grown(self._layers, self._count("layers") + n * depth + 128, k.LAYER)
        self._nodes = self._grown(self._nodes, self._count("nodes") + n + 1, k.OPEN_WRITE)

    def _drain(self) -> None:
        """Take the facts out of the kernel's tables."""
        rows, pages = self._count("facts"), self._count("pages")
        if rows:
            take = self._tables.column
            facts = {name: take(self._fact_rows, name, rows) for name in k.FACT.names or ()}
            entries = {name: take(self._fact_pages, name, pages) for name in k.FACT_PAGE.names or ()}
            self._drained.append(fact_frame(facts, entries))
        self._tables.put(self._counters, 0, facts=0, pages=0, facts0=0)

    def take_facts(self) -> pl.DataFrame:
        """The facts since the last call, in the numbers of the kernel (see `kvwitness.audit.provenance.facts`)."""
        self._drain()
        frames, self._drained = self._drained, []
        return pl.concat(frames) if frames else fact_frame(_nothing(k.FACT), _nothing(k.FACT_PAGE))

    def orphans(self, now_ns: int, ev: int) -> None:
        """Note the pages whose request ended longer ago than the bound and which it still holds."""
        self._drain()
        owners = self._tables.column(self._s, "owner")
        self._take_actors()
        held = np.flatnonzero(owners > 0)
        owner = owners[held]
        end = self._tables.column(self._actors, "end")[owner]
        request = self._tables.column(self._actors, "type")[owner] == k.T_REQUEST
        pages = held[request & (end >= 0) & (now_ns - end > self._orphan_ns)]
        if not len(pages):
            return
        pool = np.searchsorted(self._bases, pages, side="right") - 1
        keys, row = np.unique(np.stack([owners[pages], pool]), axis=1, return_inverse=True)
        row = row.reshape(-1)
        since = self._tables.column(self._c, "alloc_ev")[pages]
        first = np.array([since[row == n].min() for n in range(keys.shape[1])])
        n = keys.shape[1]
        facts = {
            "code": np.full(n, k.X_ORPHAN), "ev": np.full(n, ev), "a": keys[0], "b": np.full(n, -1), "ev2": first,
            "since": first, "pool": keys[1], "x": np.ones(n, np.int64),
        }  # fmt: skip
        gens = self._tables.column(self._s, "gen")[pages]
        zero = np.zeros(len(pages), np.int64)
        entries = {"row": row, "page": pages - self._bases[pool], "gen": gens, "lo": zero, "hi": zero}
        self._drained.append(fact_frame(facts, entries))


def fact_frame(rows: dict[str, I64], pages: dict[str, I64]) -> pl.DataFrame:
    """Kernel facts as a frame: code, ev, a, b, ev2, since, pool, x, pages, gens, positions."""
    n = len(rows["code"])
    order = np.argsort(pages["row"], kind="stable")
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(pages["row"], minlength=n), out=offsets[1:])
    width = np.zeros(n, np.int64)
    np.add.at(width, pages["row"], pages["hi"] - pages["lo"])
    lists = [
        pl.Series(name, pa.LargeListArray.from_arrays(offsets, pa.array(pages[column][order].astype(dtype))))
        for name, column, dtype in (("pages", "page", np.uint32), ("gens", "gen", np.int64))
    ]
    numbers = {name: rows[name].astype(np.int64) for name in ("code", "ev", "a", "b", "ev2", "since", "pool", "x")}
    return pl.DataFrame(numbers).with_columns(*lists, pl.Series("positions", width))


def _nothing(dtype: np.dtype[np.void]) -> dict[str, I64]:
    return {name: np.zeros(0, np.int64) for name in dtype.names or ()}
