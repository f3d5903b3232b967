"""Events as the kernel wants them: integers in columns, page lists in one flat array."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kvwitness.audit.provenance.actors import Actors
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
        chunks = lists.chunks if isinstance(lists, pa.ChunkedArray) else [lists]
        flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks]
        widths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        start, length = np.zeros(count, np.int64), np.zeros(count, np.int64)
        start[ev - first], length[ev - first] = np.cumsum(widths) - widths, widths
        joined = flat[0] if len(flat) == 1 else np.concatenate([*flat, np.zeros(1, np.uint32)])
        return cls(first, np.ascontiguousarray(joined, np.uint32), start, length)

    @classmethod
    def of_frame(cls, events: pl.DataFrame) -> Lists:
        """Of events in replay order, without holes in `ev`."""
        first = int(events["ev"][0]) if len(events) else 0
        return cls.of(events["ev"].to_numpy(), events["pages"].to_arrow(), first, len(events))


@dataclass
class Interner:
    """Numbers for names, in order of appearance."""

    codes: dict[str, int] = field(default_factory=dict)

    def encode(self, column: pl.Series) -> I64:
        """One number per row; -1 for null."""
        encoded = column.to_arrow().dictionary_encode()
        parts = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
        out = [self._part(part) for part in parts]
        return np.concatenate(out) if out else np.zeros(0, np.int64)

    def _part(self, part: pa.DictionaryArray) -> I64:
        names = part.dictionary.to_pylist()
        table = np.array([self.codes.setdefault(name, len(self.codes)) for name in names] + [-1], np.int64)
        codes: I64 = table[part.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]
        return codes


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

    def encode(self, events: pl.DataFrame, lists: Lists) -> Encoded:
        """`events` in replay order and without holes in `ev`, with the columns named in `COLUMNS`."""
        n = len(events)
        e: Columns = {name: np.full(n, -1, np.int64) for name in k.EVENT.names or ()}
        e["kind"] = _mapped(events["event"], KIND_CODES, k.K_NONE)
        e["time"] = events["ref_ns"].to_numpy()
        e["op"] = _mapped(events["op"], OP_CODES, -1)
        e["phase"] = _mapped(events["phase"], {"begin": k.PH_BEGIN, "end": k.PH_END}, k.PH_WHOLE)
        for column, name in (("tok0", "tok_first"), ("tok1", "tok_end"), ("gen_given", "gen"), ("tokens", "tokens")):
            e[column] = events[name].fill_null(-1).to_numpy()
        e["flags"] = _mapped(events["reason"], REASON_FLAGS, 0)
        e["flags"] |= np.where(events["dummy"].fill_null(False).to_numpy(), k.F_DUMMY, 0)
        e["source"] = _mapped(events["source"], {s: i for i, s in enumerate(self.sources)}, -1)
        self._names(e, events)
        second = self._lists(e, events, lists)
        self._operations(e)
        traced = np.append(self.pools.table["traced"], 0)  # -1, no pool, finds the last
        untraced = (e["kind"] == k.K_READ) & (traced[e["pool"]] == 0)
        e["kind"] = np.where(untraced, k.K_NONE, e["kind"])  # a store of which nothing but reads is on record
        self._pairs(e)
        self._flags(e, events["ev"].to_numpy())
        if self.losses:
            lost = events["ev"].is_in(list(self.losses)).to_numpy()
            e["flags"] |= np.where(lost, k.F_LOSS, 0)
        generations = events["src_gen"].explode().drop_nulls().to_numpy().astype(np.int64)
        first = int(events["ev"][0]) if n else 0
        return Encoded(e, lists.flat, second, generations, first)

    def _names(self, e: Columns, events: pl.DataFrame) -> None:
        """Actors, pools, transfers, keys and digests."""
        kinds = e["kind"]
        index = self.pools.index
        pool = _mapped(events["pool"], index, -1)
        moving = (kinds == k.K_OFFER) | (kinds == k.K_BEGIN)
        e["pool"] = np.where(moving, _mapped(events["src_pool"], index, -1), pool)
        e["pool2"] = np.where(moving, _mapped(events["dst_pool"], index, -1), _mapped(events["to_pool"], index, -1))
        paired = (kinds == k.K_COPY) | (kinds == k.K_MOVE)
        e["pool2"] = np.where(paired & (e["pool2"] < 0), pool, e["pool2"])
        e["actor"] = self._actors(events)
        e["key"] = self.keys.encode(events["key"])
        e["digest"] = self.digests.encode(events["digest"])
        transfers = kinds >= k.K_OFFER
        e["ref"] = np.where(transfers, self.transfers.encode(events["transfer"]), -1)
        steps = (kinds == k.K_STEP_BEGIN) | (kinds == k.K_STEP_END)
        e["ref"] = np.where(steps, events["step"].fill_null(-1).to_numpy(), e["ref"])
        frees = (kinds == k.K_FREE) & events["to"].is_in(["cache", "session", "snapshot"]).fill_null(False).to_numpy()
        self._successors(e, events, np.flatnonzero(frees))
        e["flags"] |= np.where((kinds == k.K_SHARE) & (e["key"] >= 0), k.F_RECORD, 0)
        e["key"] = np.where(moving, _ranks(events["writers"]), e["key"])
        drained = kinds == k.K_DRAINED
        e["key"] = np.where(drained, _ranks(events.select(pl.concat_list("rank"))["rank"]), e["key"])
        lease = kinds == k.K_LEASE
        skew = events["time_ns"].to_numpy() - events["ref_ns"].to_numpy()
        until = events["until_ns"].fill_null(-1).to_numpy()
        e["tokens"] = np.where(lease, np.where(until < 0, until, until - skew), e["tokens"])
        e["tok1"] = np.where(moving & (e["tok0"] < 0), e["tokens"], e["tok1"])
        e["tok0"] = np.where(moving & (e["tok0"] < 0) & (e["tokens"] >= 0), 0, e["tok0"])

    def _actors(self, events: pl.DataFrame) -> I64:
        actor = self.actors.of_requests(events)
        holder = events["holder"]
        if holder.null_count() < len(holder):
            rows = np.flatnonzero(holder.is_not_null().to_numpy() & (actor == 0))
            tenants = events["tenant"]
            for row in rows.tolist():
                actor[row] = self.actors.holder(holder[row], self.actors.tenant(tenants[row]))
        return actor

    def _successors(self, e: Columns, events: pl.DataFrame, rows: npt.NDArray[np.intp]) -> None:
        """`page.free ... to`: the holder, in the tenant of whoever lets go."""
        if not len(rows):
            return
        to = events["to"]
        for row in rows.tolist():
            tenant = self.actors.tenant_of(int(e["actor"][row]))
            e["ref"][row] = self.actors.holder(to[row], tenant)

    def _lists(self, e: Columns, events: pl.DataFrame, lists: Lists) -> npt.NDArray[np.uint32]:
        """Offsets of all lists; returns the second flat array: both lists of movements, reserved pages, targets."""
        kinds = e["kind"]
        moving = (kinds == k.K_OFFER) | (kinds == k.K_BEGIN)
        own = ~moving & (kinds != k.K_POOL)
        place = events["ev"].to_numpy() - lists.first
        for column, values in (("p_off", lists.start), ("p_n", lists.length)):
            e[column] = np.where(own, values[place], 0)
        second = _Flat(e)
        second.add("p", events["src_pages"], moving)
        second.add("p", events["reserved"], kinds == k.K_POOL)
        second.add("q", events["to_pages"], ~moving)
        second.add("q", events["dst_pages"], moving)
        _Flat(e).add("v", events["src_gen"], moving)
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
        for column, pool in (("rp", "pool"), ("rp2", "pool2")):
            has = (e["actor"] >= 0) & (e[pool] >= 0)
            keys = e["actor"] * width + e[pool]
            unique, inverse = np.unique(keys[has], return_inverse=True)
            rows = np.array([self.pairs.setdefault(key, len(self.pairs)) for key in unique.tolist()], np.int64)
            e[column][has] = rows[inverse] if len(rows) else 0

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


class _Flat:
    """Concatenates list columns, each for the events that it belongs to."""

    def __init__(self, e: Columns) -> None:
        self._e = e
        self._parts: list[Column] = []
        self._length = 0

    def add(self, name: str, column: pl.Series, where: npt.NDArray[np.bool_]) -> None:
        """Note offset and length of a list (`name`_off, `name`_n) for the events `where`."""
        array = column.to_arrow()
        lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
        values = array.flatten().to_numpy(zero_copy_only=False)
        starts = np.cumsum(lengths) - lengths + self._length
        for suffix, numbers in (("off", starts), ("n", lengths)):
            self._e[f"{name}_{suffix}"] = np.where(where, numbers, np.maximum(self._e[f"{name}_{suffix}"], 0))
        if len(values):
            self._parts.append(values)
            self._length += len(values)

    def values(self) -> npt.NDArray[np.uint32]:
        if not self._parts:
            return np.zeros(1, np.uint32)
        joined = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        return np.ascontiguousarray(joined, np.uint32)


def _mapped(column: pl.Series, codes: dict[str, int], default: int) -> I64:
    """Codes of a column of few distinct names."""
    encoded = column.to_arrow().dictionary_encode()
    parts: Iterable[pa.DictionaryArray] = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    out = []
    for part in parts:
        names = part.dictionary.to_pylist()
        table = np.array([codes.get(name, default) for name in names] + [default], np.int64)
        out.append(table[part.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)])
    return np.concatenate(out) if out else np.zeros(0, np.int64)


def _ranks(column: pl.Series) -> I64:
    """Lists of ranks as bits; ranks above 61 share the last one."""
    bit = pl.element().clip(0, 61)
    bits = column.list.eval(pl.lit(2, pl.Int64).pow(bit.cast(pl.UInt32)).cast(pl.Int64)).list.unique().list.sum()
    values: I64 = bits.fill_null(0).to_numpy()
    return values
