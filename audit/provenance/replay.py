"""Driving the kernel: its tables, their growth, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvwitness.audit.provenance import reclaim
from kvwitness.audit.provenance.arrow import table_of
from kvwitness.audit.provenance.encode import Encoded, Encoder, Lists
from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.kernel import run as interpreted
from kvwitness.audit.provenance.world import World

I64 = npt.NDArray[np.int64]

ORPHAN_BOUND_NS = 600 * 1_000_000_000
FACT_ROWS = 1 << 12
FACT_PAGES = 1 << 14
BATCH_ROWS = 1 << 17
"""So many events are encoded at a time."""
RECLAIM_PAGES = 1 << 21
"""Page entries of transfers, shares, publications and open reads that are kept without a second look."""

START = {
    "layers": 1 << 10, "open_writes": 1 << 10, "actors": 0, "pairs": 64, "shares": 64, "share_pages": 256,
    "publications": 64, "publication_pages": 256, "transfers": 64, "transfer_pages": 256, "transfer_ids": 64,
    "reads": 64, "read_pages": 256, "steps": k.N_STEPS, "facts": FACT_ROWS, "fact_pages": FACT_PAGES,
}  # fmt: skip
"""Records that tables begin with."""

_SPARED = ("transfer_pages", "share_pages", "publication_pages", "read_pages")
"""Tables that are only appended to, and given back in part."""


def kernel(compiled: bool) -> Callable[[World, int, int], int]:
    """The kernel's entry, compiled or interpreted."""
    if not compiled:
        return interpreted.run
    from kvwitness.audit.provenance import native  # the compiler takes a while to load

    return native.compiled()


class Replay:
    """The shadow state of every page of a trace, brought forward batch by batch.

    Events go in through `feed` in replay order; `take_facts` returns what was not plainly sound since it was last
    asked. `compiled` chooses the form of the kernel (see `kvwitness.audit.provenance.compiler`).
    """

    def __init__(self, encoder: Encoder, *, orphan_bound_ns: int = ORPHAN_BOUND_NS, compiled: bool = True) -> None:
        self.encoder = encoder
        self._compiled = compiled
        self.world = World(compiled)
        self._tables = self.world.tables
        pools = encoder.pools.table
        names = pools.dtype.names or ()
        self.world.pools = self._tables.from_columns(k.POOL, {n: pools[n] for n in names}, len(pools))
        self._bases, sizes = pools["base"], pools["size"]
        pages = max(int(sizes.sum()), 1)
        scratch = 2 * (int(pools["tokens"].max(initial=1)) + 8)
        for name, rows in {**START, "pages": pages, "cold": pages, "scratch": scratch}.items():
            self.world.make(name, rows)
        for base, size, known in zip(pools["base"].tolist(), sizes.tolist(), pools["known"].tolist(), strict=True):
            if known:
                self._mark_known(base, size)
        self._holders = -1
        self._orphan_ns = orphan_bound_ns
        self.upto = 0
        """The first event (`ev`) that has not been replayed."""
        self.world.set_counters(layer_free=-1, open_write_free=-1, orphan_ns=orphan_bound_ns)
        self._drained: list[pl.DataFrame] = []
        self._reclaim_at = RECLAIM_PAGES

    def _mark_known(self, base: int, size: int) -> None:
        pages = self.world.pages
        if self._tables.compiled:
            pages["flags"][base : base + size] = k.PF_KNOWN
        else:
            for page in pages[base : base + size]:
                page.flags = k.PF_KNOWN

    @property
    def page_events(self) -> int:
        """Pages touched by events so far."""
        return self.world.counted("page_events")

    def feed(self, events: pl.DataFrame | pa.Table, lists: Lists) -> None:
        """Replay events in replay order (columns `encode.COLUMNS`); `lists` are their page lists, or those of more.

        In a frame, or as in `kvwitness.audit.provenance.arrow`.
        """
        table = table_of(events)
        for start in range(0, table.num_rows, BATCH_ROWS):
            batch = self.encoder.encode(table.slice(start, BATCH_ROWS), lists)
            self.replay(batch)
            self.reclaim(int(batch.columns["time"][-1]))

    def replay(self, batch: Encoded) -> None:
        """Replay an encoded batch."""
        self._take_actors()
        self._make_room(batch)
        world, tables = self.world, self._tables
        world.events = tables.columns(k.EVENT, batch.columns, batch.count)
        world.listed, world.listed_too = tables.flat(batch.pages), tables.flat(batch.second_pages)
        world.generations = tables.flat(batch.generations)
        world.set_counters(ev0=batch.first_ev)
        run = kernel(self._compiled)  # not before there is something to replay: compiling takes a while
        at = 0
        while at < batch.count:
            done = run(world, at, batch.count)
            if done < batch.count:
                self._drain()
                self._grow(batch, done)
            at = done
        self.upto = batch.first_ev + batch.count

    def _take_actors(self) -> None:
        """The encoder may have met holders that the table does not have yet; what was learnt about actors stays."""
        actors = self.encoder.actors
        known = len(actors.holders)
        if known == self._holders and len(self.world.actors) == actors.capacity + len(actors.requests):
            return
        self._holders = known
        columns = actors.columns()
        learnt = self._tables.column(self.world.actors, "tainted")
        columns["tainted"][: len(learnt)] = learnt
        self.world.actors = self._tables.from_columns(k.ACTOR, columns, len(columns["tenant"]))

    def reclaim(self, now_ns: int) -> None:
        """Drop what is kept of requests that ended longer ago than the orphan bound, when it has become much."""
        world = self.world
        if not self._tables.compiled or sum(map(world.counted, _SPARED)) < self._reclaim_at:
            return
        end = self._tables.column(world.actors, "end")
        ended = (end >= 0) & (end < now_ns - self._orphan_ns)
        pairs = world.pairs
        numbers = self._keep("transfers", "transfer_pages", *reclaim.transfers(*self._used("transfer"), ended))
        pairs["transfer"], pairs["source"] = numbers[pairs["transfer"]], numbers[pairs["source"]]
        world.transfer_ids["head"] = numbers[world.transfer_ids["head"]]
        numbers = self._keep("shares", "share_pages", *reclaim.shares(*self._used("share"), ended))
        pairs["share"] = numbers[pairs["share"]]
        numbers = self._keep("reads", "read_pages", *reclaim.reads(*self._used("read"), ended))
        pairs["read"] = numbers[pairs["read"]]
        left = reclaim.publications(*self._used("publication"), world.pages, self._bases)
        world.keys = self._keep("publications", "publication_pages", *left)[world.keys]
        self._reclaim_at = max(RECLAIM_PAGES, 2 * sum(map(world.counted, _SPARED)))

    def _used(self, name: str) -> tuple[Any, Any]:
        """The used rows of a table of records and of its page entries."""
        records, pages = f"{name}s", f"{name}_pages"
        world = self.world
        return getattr(world, records)[: world.used(records)], getattr(world, pages)[: world.used(pages)]

    def _keep(self, records: str, pages: str, kept: Any, kept_pages: Any, numbers: I64) -> I64:
        """Replace two tables by what is kept of them; returns the renumbering."""
        for name, rows in ((records, kept), (pages, kept_pages)):
            self.world.make(name, max(256, len(rows)))
            getattr(self.world, name)[: len(rows)] = rows
            self.world.set_counters(**{name: len(rows)})
        return numbers

    def _make_room(self, batch: Encoded) -> None:
        """Tables that are only appended to get room for the whole batch at once."""
        columns, world = batch.columns, self.world
        kind = columns["kind"]
        events = np.bincount(kind, minlength=k.K_LEASE + 1)
        first = np.bincount(kind, columns["p_n"], k.K_LEASE + 1).astype(np.int64)
        second = np.bincount(kind, columns["q_n"], k.K_LEASE + 1).astype(np.int64)
        offers = events + first + second
        kept = (kind == k.K_READ) & (columns["flags"] & k.F_RECORD != 0)
        more = {
            "shares": events[k.K_SHARE],
            "share_pages": first[k.K_SHARE],
            "publications": events[k.K_PUBLISH],
            "publication_pages": first[k.K_PUBLISH] + 1,
            "transfers": events[k.K_OFFER] + events[k.K_BEGIN],
            "transfer_pages": offers[k.K_OFFER] + offers[k.K_BEGIN],
            "reads": kept.sum(),
            "read_pages": columns["p_n"][kept].sum(),
        }
        for name, rows in more.items():
            world.grow(name, world.counted(name) + int(rows))
        world.grow("pairs", len(self.encoder.pairs))
        world.grow("transfer_ids", len(self.encoder.transfers.codes))
        keys = len(self.encoder.keys.codes)
        if keys > len(world.keys):
            world.keys = np.concatenate([world.keys, np.full(keys, -1, np.int64)])

    def _grow(self, batch: Encoded, at: int) -> None:
        """Give the tables that faults fill room for event `at`."""
        n = int(batch.columns["p_n"][at] + batch.columns["q_n"][at])
        world = self.world
        depth = world.counted("depth") + 2
        world.grow("facts", 4 * n + 128)
        world.grow("fact_pages", 3 * n * depth + 128)
        world.grow("layers", world.counted("layers") + n * depth + 128)
        world.grow("open_writes", world.counted("open_writes") + n + 1)

    def _drain(self) -> None:
        """Take the facts out of the kernel's tables."""
        world = self.world
        rows, pages = world.counted("facts"), world.counted("fact_pages")
        if rows:
            take = self._tables.column
            facts = {name: take(world.facts, name, rows) for name in k.FACT.names or ()}
            entries = {name: take(world.fact_pages, name, pages) for name in k.FACT_PAGE.names or ()}
            self._drained.append(fact_frame(facts, entries))
        world.set_counters(facts=0, fact_pages=0, facts0=0)

    def take_facts(self) -> pl.DataFrame:
        """The facts since the last call, in the numbers of the kernel (see `kvwitness.audit.provenance.facts`)."""
        self._drain()
        frames, self._drained = self._drained, []
        return pl.concat(frames) if frames else fact_frame(_nothing(k.FACT), _nothing(k.FACT_PAGE))

    def orphans(self, now_ns: int, ev: int) -> None:
        """Note the pages whose request ended longer ago than the bound and which it still holds."""
        self._drain()
        owners = self._tables.column(self.world.pages, "owner")
        self._take_actors()
        held = np.flatnonzero(owners > 0)
        owner = owners[held]
        end = self._tables.column(self.world.actors, "end")[owner]
        request = self._tables.column(self.world.actors, "type")[owner] == k.T_REQUEST
        pages = held[request & (end >= 0) & (now_ns - end > self._orphan_ns)]
        if not len(pages):
            return
        pool = np.searchsorted(self._bases, pages, side="right") - 1
        keys, row = np.unique(np.stack([owners[pages], pool]), axis=1, return_inverse=True)
        row = row.reshape(-1)
        since = self._tables.column(self.world.cold, "alloc_ev")[pages]
        first = np.array([since[row == n].min() for n in range(keys.shape[1])])
        n = keys.shape[1]
        facts = {
            "code": np.full(n, k.X_ORPHAN), "ev": np.full(n, ev), "a": keys[0], "b": np.full(n, -1), "ev2": first,
            "since": first, "pool": keys[1], "x": np.ones(n, np.int64),
        }  # fmt: skip
        gens = self._tables.column(self.world.pages, "gen")[pages]
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
