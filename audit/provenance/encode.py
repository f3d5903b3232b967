"""Events as the kernel wants them: integers in columns, page lists in one flat array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvwitness.audit.provenance.actors import Actors
from kvwitness.audit.provenance.arrow import Texts, column, listed, numbers, table_of, texts, truths
from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.pools import Pools

I64 = npt.NDArray[np.int64]
Columns = dict[str, I64]
Column = npt.NDArray[Any]

KIND_CODES = {
    "engine.pool": k.K_POOL,
    "page.alloc": k.K_ALLOC,
    "page.free": k.K_FREE,
    "page.share": k.K_SHARE,
    "page.publish": k.K_PUBLISH,
    "page.unpublish": k.K_UNPUBLISH,
    "page.write": k.K_WRITE,
    "page.read": k.K_READ,
    "page.copy": k.K_COPY,
    "page.move": k.K_MOVE,
    "step.begin": k.K_STEP_BEGIN,
    "step.end": k.K_STEP_END,
    "transfer.offer": k.K_OFFER,
    "transfer.begin": k.K_BEGIN,
    "transfer.done": k.K_DONE,
    "transfer.failed": k.K_FAILED,
    "transfer.drained": k.K_DRAINED,
    "transfer.lease": k.K_LEASE,
}
OP_CODES = {
    "forward": k.OP_FORWARD,
    "transfer": k.OP_TRANSFER,
    "load": k.OP_LOAD,
    "copy": k.OP_COPY,
    "scrub": k.OP_SCRUB,
    "dummy": k.OP_DUMMY,
    "decode": k.OP_DECODE,
    "prefill": k.OP_PREFILL,
    "offload": k.OP_OFFLOAD,
}
REASON_FLAGS = {"timeout": k.F_TIMEOUT, "window": k.F_WINDOW, "preempt": k.F_PREEMPT, "start": k.F_START}

COLUMNS = [
    "ev",
    "ref_ns",
    "time_ns",
    "event",
    "source",
    "request",
    "incarnation",
    "tenant",
    "pool",
    "to_pool",
    "to_pages",
    "tok_first",
    "tok_end",
    "gen",
    "holder",
    "reason",
    "to",
    "op",
    "phase",
    "key",
    "digest",
    "step",
    "dummy",
    "transfer",
    "src_pool",
    "src_pages",
    "src_gen",
    "writers",
    "rank",
    "dst_pool",
    "dst_pages",
    "tokens",
    "until_ns",
    "reserved",
]
"""Event columns that the replay looks at."""


@dataclass(frozen=True)
class Lists:
    """Page lists of a stretch of events: event `first` + i has flat[start[i] : start[i] + length[i]]."""

    first: int
    flat: npt.NDArray[np.uint32]
    start: I64
    length: I64

    @classmethod
    def of(cls, ev: I64, lists: pa.ChunkedArray | pa.Array, first: int, count: int) -> Lists:
        """From the lists of events `ev`, in any order; those of the `count` events that are not there have none."""
        given = listed(lists)
        flat = np.ascontiguousarray(given.flat, np.uint32) if len(given.flat) else np.zeros(1, np.uint32)
        place = ev - first
        if len(place) == count and np.array_equal(place, np.arange(count)):
            return cls(first, flat, given.start, given.length)
        start, length = np.zeros(count, np.int64), np.zeros(count, np.int64)
        start[place], length[place] = given.start, given.length
        return cls(first, flat, start, length)

    @classmethod
    def of_frame(cls, events: pl.DataFrame) -> Lists:
        """Of events in replay order, without holes in `ev`."""
        first = int(events["ev"][0]) if len(events) else 0
        return cls.of(events["ev"].to_numpy(), events["pages"].to_arrow(), first, len(events))


@dataclass
class Interner:
    """Numbers for names, in order of appearance."""

    codes: dict[str, int] = field(default_factory=dict)

    def encode(self, column: Texts) -> I64:
        """One number per row; -1 for null."""
        table = [-1 if name is None else self.codes.setdefault(name, len(self.codes)) for name in column.names]
        return np.array(table, np.int64)[column.codes]


@dataclass(frozen=True)
class Encoded:
    """A batch for the kernel: columns of `layout.EVENT`, and the flat lists that their offsets point into."""

    columns: Columns
    pages: npt.NDArray[np.uint32]
    second_pages: npt.NDArray[np.uint32]
    generations: I64
    first_ev: int = 0

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.columns["kind"])


@dataclass
class Encoder:
    """Turns ordered events into batches; keeps the numbering of names from batch to batch."""

    actors: Actors
    pools: Pools
    sources: list[str]
    transfers: Interner = field(default_factory=Interner)
    keys: Interner = field(default_factory=Interner)
    digests: Interner = field(default_factory=Interner)
    pairs: dict[int, int] = field(default_factory=dict)
    losses: frozenset[int] = frozenset()
    """The last events (`ev`) before a loss of telemetry, and the first after it."""
    read_on: frozenset[int] = frozenset()
    """Reads (`ev`) that were stated as a whole and whose end is stated later all the same (see `open_reads`)."""
    transfer_writers: set[int] = field(default_factory=set)
    """Sources that report the bytes of transfers as they land; who is not given here is found out batch by batch."""
    _rows: I64 = field(default_factory=lambda: np.full(256, -1, np.int64), init=False, repr=False)
    """`pairs` as an array: number of the pair -> its row, -1 without one."""
    _noted: int = field(default=0, init=False, repr=False)
    """How many of `pairs` are in it."""

    def encode(self, events: pl.DataFrame | pa.Table, lists: Lists) -> Encoded:
        """`events` in replay order and without holes in `ev`, with the columns named in `COLUMNS`.

        In a frame, or as in `kvwitness.audit.provenance.arrow`; columns without any value may be absent.
        """
        table = table_of(events)
        ev = numbers(table, "ev")
        kinds = texts(table, "event").mapped(KIND_CODES, k.K_NONE)
        e: Columns = {name: np.full(len(kinds), -1) for name in ("rp", "rp2")} | {"kind": kinds}
        e["time"] = numbers(table, "ref_ns")
        e["op"] = texts(table, "op").mapped(OP_CODES, -1)
        e["phase"] = texts(table, "phase").mapped({"begin": k.PH_BEGIN, "end": k.PH_END}, k.PH_WHOLE)
        for name, source in (("tok0", "tok_first"), ("tok1", "tok_end"), ("gen_given", "gen"), ("tokens", "tokens")):
            e[name] = numbers(table, source)
        e["flags"] = texts(table, "reason").mapped(REASON_FLAGS, 0)
        if column(table, "dummy") is not None:
            e["flags"] |= np.where(truths(table, "dummy"), k.F_DUMMY, 0)
        e["source"] = texts(table, "source").mapped({s: i for i, s in enumerate(self.sources)}, -1)
        self._names(e, table)
        second = self._lists(e, table, ev, lists)
        self._operations(e)
        traced = np.append(self.pools.table["traced"], 0)  # -1, no pool, finds the last
        if not traced[:-1].all():
            untraced = (kinds == k.K_READ) & (traced[e["pool"]] == 0)
            e["kind"] = np.where(untraced, k.K_NONE, kinds)  # a store of which nothing but reads is on record
        self._pairs(e)
        self._flags(e, ev)
        if self.losses:
            e["flags"] |= np.where(np.isin(ev, list(self.losses)), k.F_LOSS, 0)
        given = column(table, "src_gen")
        generations = np.zeros(0, np.int64) if given is None else listed(given).flat.astype(np.int64)
        return Encoded(e, lists.flat, second, generations, int(ev[0]) if len(ev) else 0)

    def _names(self, e: Columns, table: pa.Table) -> None:
        """Actors, pools, transfers, keys and digests."""
        kinds, index = e["kind"], self.pools.index
        e["pool"] = texts(table, "pool").mapped(index, -1)
        e["pool2"] = texts(table, "to_pool").mapped(index, -1)
        e["actor"] = self._actors(table)
        e["key"] = self.keys.encode(texts(table, "key"))
        e["digest"] = self.digests.encode(texts(table, "digest"))
        e["ref"] = self.transfers.encode(texts(table, "transfer"))
        e["flags"] |= np.where((kinds == k.K_SHARE) & (e["key"] >= 0), k.F_RECORD, 0)
        paired = (kinds == k.K_COPY) | (kinds == k.K_MOVE)
        e["pool2"] = np.where(paired & (e["pool2"] < 0), e["pool"], e["pool2"])
        if np.any(kinds >= k.K_OFFER):
            self._transfers(e, table)
        e["ref"] = np.where(kinds >= k.K_OFFER, e["ref"], -1)
        steps = (kinds == k.K_STEP_BEGIN) | (kinds == k.K_STEP_END)
        if steps.any():
            e["ref"] = np.where(steps, numbers(table, "step"), e["ref"])
        frees = (kinds == k.K_FREE) & texts(table, "to").among(("cache", "session", "snapshot"))
        self._successors(e, table, np.flatnonzero(frees))

    def _transfers(self, e: Columns, table: pa.Table) -> None:
        """Pools, writers, times and tokens of transfers."""
        kinds, index = e["kind"], self.pools.index
        moving = _moving(kinds)
        e["pool"] = np.where(moving, texts(table, "src_pool").mapped(index, -1), e["pool"])
        e["pool2"] = np.where(moving, texts(table, "dst_pool").mapped(index, -1), e["pool2"])
        e["key"] = np.where(moving, _ranks(table, "writers"), e["key"])
        rank = numbers(table, "rank", _NO_RANK)
        e["key"] = np.where(kinds == k.K_DRAINED, np.where(rank == _NO_RANK, 0, _bit(rank)), e["key"])
        skew = numbers(table, "time_ns") - e["time"]
        until = numbers(table, "until_ns")
        e["tokens"] = np.where(kinds == k.K_LEASE, np.where(until < 0, until, until - skew), e["tokens"])
        unplaced = moving & (e["tok0"] < 0)
        e["tok1"] = np.where(unplaced, e["tokens"], e["tok1"])
        e["tok0"] = np.where(unplaced & (e["tokens"] >= 0), 0, e["tok0"])

    def _actors(self, table: pa.Table) -> I64:
        actor = self.actors.of_requests(texts(table, "request"), numbers(table, "incarnation", 0))
        if column(table, "holder") is not None:
            holder, tenant = texts(table, "holder"), texts(table, "tenant")
            said = holder.codes < len(holder.names) - 1
            for row in np.flatnonzero(said & (actor == 0)).tolist():
                kind = holder.names[holder.codes[row]] or ""
                actor[row] = self.actors.holder(kind, self.actors.tenant(tenant.names[tenant.codes[row]]))
        return actor

    def _successors(self, e: Columns, table: pa.Table, rows: npt.NDArray[np.intp]) -> None:
        """`page.free ... to`: the holder, in the tenant of whoever lets go."""
        if len(rows):
            to = texts(table, "to")
            for row in rows.tolist():
                tenant = self.actors.tenant_of(int(e["actor"][row]))
                e["ref"][row] = self.actors.holder(to.names[to.codes[row]] or "", tenant)

    def _lists(self, e: Columns, table: pa.Table, ev: I64, lists: Lists) -> npt.NDArray[np.uint32]:
        """Offsets of all lists; returns the second flat array: both lists of movements, reserved pages, targets."""
        kinds = e["kind"]
        moving, pool = _moving(kinds), kinds == k.K_POOL
        own = ~(moving | pool)
        place = slice(int(ev[0]) - lists.first, int(ev[0]) - lists.first + len(ev)) if len(ev) else slice(0, 0)
        e["p_off"] = np.where(own, lists.start[place], 0)
        e["p_n"] = np.where(own, lists.length[place], 0)
        nothing = np.zeros(len(kinds), np.int64)
        e |= dict.fromkeys(("q_off", "q_n", "v_off", "v_n"), nothing)
        second = _Flat(e)
        second.add("p", column(table, "src_pages"), moving)
        second.add("p", column(table, "reserved"), pool)
        second.add("q", column(table, "to_pages"), ~moving)
        second.add("q", column(table, "dst_pages"), moving)
        _Flat(e).add("v", column(table, "src_gen"), moving)
        return second.values()

    def _operations(self, e: Columns) -> None:
        kinds = e["kind"]
        e["op"] = np.where((kinds == k.K_READ) & (e["op"] < 0), k.OP_DECODE, e["op"])
        write = kinds == k.K_WRITE
        unnamed = np.where(e["actor"] > 0, k.OP_FORWARD, k.OP_DUMMY)
        e["op"] = np.where(write & (e["op"] < 0), unnamed, e["op"])
        dummy = write & (e["op"] == k.OP_DUMMY)
        e["actor"] = np.where(dummy, k.NOBODY, e["actor"])

    def _pairs(self, e: Columns) -> None:
        """Row numbers of (request, pool)."""
        width = len(self.pools.names) + 1
        for name, pool in (("rp", "pool"), ("rp2", "pool2")):
            has = (e["actor"] >= 0) & (e[pool] >= 0)
            if has.any():
                e[name] = np.where(has, self._row_of(e["actor"] * width + e[pool], has), -1)

    def _row_of(self, keys: I64, has: npt.NDArray[np.bool_]) -> I64:
        """The row of each key that counts (`has`): its own from the first time on that it comes."""
        if len(self.pairs) != self._noted:  # a state was taken over
            self._note(np.fromiter(self.pairs, np.int64, len(self.pairs)), 0)
        self._room(int(keys.max()))
        met = keys[has]
        fresh = np.unique(met[self._rows[met] < 0])
        self.pairs.update(zip(fresh.tolist(), range(self._noted, self._noted + len(fresh)), strict=True))
        self._note(fresh, self._noted)
        return self._rows[keys]

    def _note(self, keys: I64, first: int) -> None:
        self._room(int(keys.max(initial=0)))
        self._rows[keys] = np.arange(first, first + len(keys))
        self._noted = first + len(keys)

    def _room(self, key: int) -> None:
        if key >= len(self._rows):
            more = np.full(max(key + 1, 2 * len(self._rows)) - len(self._rows), -1, np.int64)
            self._rows = np.concatenate([self._rows, more])

    def _flags(self, e: Columns, ev: I64) -> None:
        kinds = e["kind"]
        read = kinds == k.K_READ
        remote = (e["op"] == k.OP_TRANSFER) | (e["op"] == k.OP_OFFLOAD) | (e["op"] == k.OP_COPY)
        opened = np.isin(ev, list(self.read_on)) if self.read_on else False
        keep = read & (e["phase"] != k.PH_END) & (remote | (e["phase"] == k.PH_BEGIN) | opened)
        e["flags"] |= np.where(keep, k.F_RECORD, 0)
        nobody = (kinds == k.K_FREE) & (e["actor"] == 0)
        e["flags"] |= np.where(nobody, k.F_ANYONE, 0)
        landing = (kinds == k.K_WRITE) & (e["op"] == k.OP_TRANSFER)
        self.transfer_writers |= set(np.unique(e["source"][landing]).tolist())
        told = (kinds == k.K_DONE) & np.isin(e["source"], list(self.transfer_writers))
        e["flags"] |= np.where(told, k.F_RECORD, 0)


def _moving(kinds: I64) -> npt.NDArray[np.bool_]:
    moving: npt.NDArray[np.bool_] = (kinds == k.K_OFFER) | (kinds == k.K_BEGIN)
    return moving


class _Flat:
    """Concatenates list columns, each for the events that it belongs to."""

    def __init__(self, e: Columns) -> None:
        self._e = e
        self._parts: list[Column] = []
        self._length = 0

    def add(self, name: str, lists: pa.ChunkedArray | None, where: npt.NDArray[np.bool_]) -> None:
        """Note offset and length of a list (`name`_off, `name`_n) for the events `where`."""
        if lists is None:
            return
        given = listed(lists)
        for suffix, values in (("off", given.start + self._length), ("n", given.length)):
            self._e[f"{name}_{suffix}"] = np.where(where, values, self._e[f"{name}_{suffix}"])
        if len(given.flat):
            self._parts.append(given.flat)
            self._length += len(given.flat)

    def values(self) -> npt.NDArray[np.uint32]:
        if not self._parts:
            return np.zeros(1, np.uint32)
        joined = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        return np.ascontiguousarray(joined, np.uint32)


_NO_RANK = -(1 << 62)


def _ranks(table: pa.Table, name: str) -> I64:
    """Lists of ranks as bits; ranks above 61 share the last one."""
    found = column(table, name)
    if found is None:
        return np.zeros(table.num_rows, np.int64)
    given = listed(found)
    ranked = np.zeros(table.num_rows, np.int64)
    np.bitwise_or.at(ranked, np.repeat(np.arange(table.num_rows), given.length), _bit(given.flat))
    return ranked


def _bit(rank: Column) -> I64:
    return np.left_shift(1, np.clip(rank, 0, 61).astype(np.int64))
