"""Driving the kernel: its arrays, their growth, and what it hands back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvwitness.audit.provenance.encode import Encoded, Encoder
from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.kernel.run import run

I64 = npt.NDArray[np.int64]

ORPHAN_BOUND_NS = 600 * 1_000_000_000
FACT_ROWS = 1 << 14
FACT_PAGES = 1 << 18


class Replay:
    """The shadow state of every page of a trace, brought forward batch by batch.

    Events go in through `feed` in replay order; `facts` returns what was not plainly sound since it was last asked.
    """

    def __init__(self, encoder: Encoder, *, orphan_bound_ns: int = ORPHAN_BOUND_NS) -> None:
        self.encoder = encoder
        pools = encoder.pools.table
        pages = int(pools[:, k.B_SIZE].sum()) if len(pools) else 0
        self._s = np.zeros((max(pages, 1), 16), np.int32)
        self._s[:, [k.OWNER, k.NEXT, k.WRITER, k.LGEN, k.LEV, k.ORIGIN, k.STEP, k.ORD]] = -1
        for row in pools:
            if row[k.B_KNOWN]:
                self._s[row[k.B_BASE] : row[k.B_BASE] + row[k.B_SIZE], k.PFLAGS] = k.PF_KNOWN
        self._c = np.full((max(pages, 1), 8), -1, np.int32)
        self._layers = np.zeros((1 << 12, 8), np.int32)
        self._nodes = np.zeros((1 << 10, 7), np.int32)
        self._actors = encoder.actors.table()
        self._rows = _pair_rows(1 << 10)
        self._pools = pools if len(pools) else np.zeros((1, k.N_POOL_COLUMNS), np.int64)
        self._shares, self._share_pages = np.zeros((256, 10), np.int64), np.zeros((1024, 3), np.int32)
        self._pubs, self._pub_pages = np.zeros((256, 8), np.int64), np.zeros((1024, 3), np.int32)
        self._keys = np.full(256, -1, np.int64)
        self._transfers = np.zeros((256, k.N_TRANSFER_COLUMNS), np.int64)
        self._transfer_pages = np.zeros((1024, 4), np.int32)
        self._transfer_ids = np.full((256, 2), -1, np.int64)
        self._reads, self._read_pages = np.zeros((256, 10), np.int64), np.zeros((1024, 2), np.int32)
        self._steps = np.zeros((k.N_STEPS, 4), np.int64)
        tokens = int(self._pools[:, k.B_TOKENS].max(initial=1))
        self._scratch = np.zeros((2 * (tokens + 8), 8), np.int32)
        self._fact_rows = np.zeros((FACT_ROWS, k.N_FACT_COLUMNS), np.int64)
        self._fact_pages = np.zeros((FACT_PAGES, 5), np.int32)
        self._counters = np.zeros(k.N_COUNTERS, np.int64)
        self._counters[k.CT_LAYER_FREE] = -1
        self._counters[k.CT_NODE_FREE] = -1
        self._counters[k.CT_ORPHAN_NS] = orphan_bound_ns
        self._orphan_ns = orphan_bound_ns
        self._drained: list[pl.DataFrame] = []

    @property
    def page_events(self) -> int:
        """Pages touched by events so far."""
        return int(self._counters[k.CT_PAGE_EVENTS])

    def feed(self, events: pl.DataFrame) -> None:
        """Replay the events of a frame in replay order (columns `encode.COLUMNS`)."""
        if len(events):
            batch = self.encoder.encode(events)
            self._actors = _carried(self._actors, self.encoder.actors.table())
            self.replay(batch)

    def replay(self, batch: Encoded) -> None:
        """Replay an encoded batch."""
        self._make_room(batch)
        self._counters[k.CT_EV0] = batch.first_ev
        at = 0
        while at < batch.count:
            done = run(
                batch.events, at, batch.count, batch.pages, batch.second_pages, batch.generations, self._s, self._c,
                self._layers, self._nodes, self._actors, self._rows, self._pools, self._shares, self._share_pages,
                self._pubs, self._pub_pages, self._keys, self._transfers, self._transfer_pages, self._transfer_ids,
                self._reads, self._read_pages, self._steps, self._scratch, self._fact_rows, self._fact_pages,
                self._counters,
            )  # fmt: skip
            if done < batch.count:
                self._drain()
                self._grow(batch, done)
            at = done

    def _make_room(self, batch: Encoded) -> None:
        """Arrays that are only appended to get room for the whole batch at once."""
        e, c = batch.events, self._counters

        def need(kinds: tuple[int, ...], column: int | None = None) -> int:
            which = np.isin(e[k.KIND], kinds)
            return int(which.sum()) if column is None else int(e[column][which].sum())

        moves = (k.K_OFFER, k.K_BEGIN)
        self._rows = _taller(self._rows, len(self.encoder.pairs), _pair_rows)
        self._keys = _taller(self._keys, len(self.encoder.keys.codes), _none)
        self._transfer_ids = _taller(self._transfer_ids, len(self.encoder.transfers.codes), _none_pairs)
        self._shares = _taller(self._shares, int(c[k.CT_SHARES]) + need((k.K_SHARE,)))
        self._share_pages = _taller(self._share_pages, int(c[k.CT_SHARE_PAGES]) + need((k.K_SHARE,), k.P_N))
        self._pubs = _taller(self._pubs, int(c[k.CT_PUBS]) + need((k.K_PUBLISH,)))
        self._pub_pages = _taller(self._pub_pages, int(c[k.CT_PUB_PAGES]) + need((k.K_PUBLISH,), k.P_N) + 1)
        self._transfers = _taller(self._transfers, int(c[k.CT_TRANSFERS]) + need(moves))
        both = need(moves, k.P_N) + need(moves, k.Q_N)
        self._transfer_pages = _taller(self._transfer_pages, int(c[k.CT_TRANSFER_PAGES]) + both)
        kept = (e[k.KIND] == k.K_READ) & (e[k.FLAGS] & k.F_RECORD != 0)
        self._reads = _taller(self._reads, int(c[k.CT_READS]) + int(kept.sum()))
        self._read_pages = _taller(self._read_pages, int(c[k.CT_READ_PAGES]) + int(e[k.P_N][kept].sum()))

    def _grow(self, batch: Encoded, at: int) -> None:
        """Give the arrays that faults fill room for event `at`."""
        n = int(batch.events[k.P_N, at] + batch.events[k.Q_N, at])
        c = self._counters
        depth = int(c[k.CT_DEPTH]) + 2
        self._fact_rows = _taller(self._fact_rows, 4 * n + 128)
        self._fact_pages = _taller(self._fact_pages, 3 * n * depth + 128)
        self._layers = _taller(self._layers, int(c[k.CT_LAYERS]) + n * depth + 128)
        self._nodes = _taller(self._nodes, int(c[k.CT_NODES]) + n + 1)

    def _drain(self) -> None:
        """Take the facts out of the kernel's arrays."""
        rows, pages = int(self._counters[k.CT_FACTS]), int(self._counters[k.CT_PAGES])
        if rows:
            self._drained.append(fact_frame(self._fact_rows[:rows], self._fact_pages[:pages]))
        self._counters[[k.CT_FACTS, k.CT_PAGES, k.CT_FACTS0]] = 0

    def take_facts(self) -> pl.DataFrame:
        """The facts since the last call, in the numbers of the kernel (see `kvwitness.audit.provenance.facts`)."""
        self._drain()
        frames, self._drained = self._drained, []
        return pl.concat(frames) if frames else fact_frame(self._fact_rows[:0], self._fact_pages[:0])

    def orphans(self, now_ns: int, ev: int) -> None:
        """Note the pages whose request ended longer ago than the bound and which it still holds."""
        owners = self._s[:, k.OWNER]
        held = np.flatnonzero(owners > 0)
        owner = owners[held]
        end = self._actors[owner, k.A_END]
        request = self._actors[owner, k.A_TYPE] == k.T_REQUEST
        self._note_orphans(held[request & (end >= 0) & (now_ns - end > self._orphan_ns)], ev)

    def _note_orphans(self, pages: npt.NDArray[np.intp], ev: int) -> None:
        self._drain()
        if not len(pages):
            return
        bases = self._pools[:, k.B_BASE]
        pool = np.searchsorted(bases, pages, side="right") - 1
        groups = np.stack([self._s[pages, k.OWNER].astype(np.int64), pool])
        keys, row = np.unique(groups, axis=1, return_inverse=True)
        row = row.reshape(-1)
        rows = np.zeros((keys.shape[1], k.N_FACT_COLUMNS), np.int64)
        rows[:, k.FR_CODE], rows[:, k.FR_EV], rows[:, k.FR_A], rows[:, k.FR_B] = k.X_ORPHAN, ev, keys[0], -1
        rows[:, k.FR_POOL], rows[:, k.FR_X] = keys[1], 1
        since = self._c[pages, k.ALLOC_EV].astype(np.int64)
        for n in range(keys.shape[1]):
            rows[n, k.FR_EV2] = rows[n, k.FR_SINCE] = since[row == n].min()
        entries = np.zeros((len(pages), 5), np.int32)
        entries[:, 0], entries[:, 1], entries[:, 2] = row, pages - bases[pool], self._s[pages, k.GEN]
        self._drained.append(fact_frame(rows, entries))


def fact_frame(rows: I64, pages: npt.NDArray[np.int32]) -> pl.DataFrame:
    """Kernel facts as a frame: code, ev, a, b, ev2, since, pool, x, pages, gens, positions."""
    order = np.argsort(pages[:, 0], kind="stable")
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.bincount(pages[:, 0], minlength=len(rows)), out=offsets[1:])
    ordered = pages[order]
    width = np.zeros(len(rows), np.int64)
    np.add.at(width, ordered[:, 0], (ordered[:, 4] - ordered[:, 3]).astype(np.int64))
    lists = [
        pl.Series(name, pa.LargeListArray.from_arrays(offsets, pa.array(ordered[:, column].astype(dtype))))
        for name, column, dtype in (("pages", 1, np.uint32), ("gens", 2, np.int64))
    ]
    names = ("code", k.FR_CODE), ("ev", k.FR_EV), ("a", k.FR_A), ("b", k.FR_B), ("ev2", k.FR_EV2)
    more = ("since", k.FR_SINCE), ("pool", k.FR_POOL), ("x", k.FR_X)
    numbers = {name: rows[:, column].copy() for name, column in (*names, *more)}
    return pl.DataFrame(numbers).with_columns(*lists, pl.Series("positions", width))


def _pair_rows(n: int) -> I64:
    rows = np.zeros((n, 12), np.int64)
    rows[:, [k.R_PENDING0, k.R_PENDING1, k.R_SHARE, k.R_TRANSFER, k.R_READ, k.R_SOURCE]] = -1
    return rows


def _none(n: int) -> I64:
    return np.full(n, -1, np.int64)


def _none_pairs(n: int) -> I64:
    return np.full((n, 2), -1, np.int64)


def _taller(array: Any, needed: int, make: Any = None) -> Any:
    """The array itself, or a copy with room for `needed` rows and some to spare."""
    if needed <= len(array):
        return array
    rows = max(needed, 2 * len(array))
    fresh = make(rows) if make else np.zeros((rows, *array.shape[1:]), array.dtype)
    fresh[: len(array)] = array
    return fresh


def _carried(old: I64, new: I64) -> I64:
    """A new actor table with what the replay had learnt about the actors it knew."""
    n = min(len(old), len(new))
    new[:n, k.A_TAINTED] = old[:n, k.A_TAINTED]
    return new
