"""Events as the kernel wants them: integers in columns, page lists in one flat array."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvwitness.audit.provenance.actors import Actors
from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.pools import Pools

I64 = npt.NDArray[np.int64]
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
REASON_FLAGS = {"timeout": k.F_TIMEOUT, "window": k.F_WINDOW, "preempt": k.F_PREEMPT}

COLUMNS = (
    "ev ref_ns time_ns event source request incarnation tenant pool pages to_pool to_pages tok_first tok_end gen holder "
    "reason to op phase key digest step dummy transfer src_pool src_pages src_gen dst_pool dst_pages tokens until_ns "
    "reserved"
).split()
"""Event columns that the replay looks at."""


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
        return table[part.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]


@dataclass(frozen=True)
class Encoded:
    """A batch for the kernel: E[column, event], and the flat lists that its offsets point into."""

    events: I64
    pages: npt.NDArray[np.uint32]
    second_pages: npt.NDArray[np.uint32]
    generations: I64
    first_ev: int = 0

    @property
    def count(self) -> int:
        return int(self.events.shape[1])


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
    _transfer_writers: set[int] = field(default_factory=set)

    def encode(self, events: pl.DataFrame) -> Encoded:
        """`events` in replay order and without holes in `ev`, with the columns named in `COLUMNS`."""
        n = len(events)
        e = np.full((k.N_EVENT_COLUMNS, n), -1, np.int64)
        e[k.KIND] = _mapped(events["event"], KIND_CODES, k.K_NONE)
        e[k.TIME] = events["ref_ns"].to_numpy()
        e[k.OP] = _mapped(events["op"], OP_CODES, -1)
        e[k.PHASE] = _mapped(events["phase"], {"begin": k.PH_BEGIN, "end": k.PH_END}, k.PH_WHOLE)
        for column, name in ((k.TOK0, "tok_first"), (k.TOK1, "tok_end"), (k.GEN_GIVEN, "gen"), (k.TOKENS, "tokens")):
            e[column] = events[name].fill_null(-1).to_numpy()
        e[k.FLAGS] = _mapped(events["reason"], REASON_FLAGS, 0)
        e[k.FLAGS] |= np.where(events["dummy"].fill_null(False).to_numpy(), k.F_DUMMY, 0)
        e[k.SOURCE] = _mapped(events["source"], {s: i for i, s in enumerate(self.sources)}, -1)
        self._names(e, events)
        pages, second = self._lists(e, events)
        self._operations(e)
        untraced = (e[k.KIND] == k.K_READ) & (self.pools.table[e[k.POOL], k.B_TRACED] == 0)
        e[k.KIND] = np.where(untraced, k.K_NONE, e[k.KIND])  # a store of which nothing but reads is on record
        self._pairs(e)
        self._flags(e)
        generations = events["src_gen"].explode().drop_nulls().to_numpy().astype(np.int64)
        first = int(events["ev"][0]) if n else 0
        return Encoded(e, pages, second, generations, first)

    def _names(self, e: I64, events: pl.DataFrame) -> None:
        """Actors, pools, transfers, keys and digests."""
        kinds = e[k.KIND]
        index = self.pools.index
        pool = _mapped(events["pool"], index, -1)
        moving = (kinds == k.K_OFFER) | (kinds == k.K_BEGIN)
        e[k.POOL] = np.where(moving, _mapped(events["src_pool"], index, -1), pool)
        e[k.POOL2] = np.where(moving, _mapped(events["dst_pool"], index, -1), _mapped(events["to_pool"], index, -1))
        paired = (kinds == k.K_COPY) | (kinds == k.K_MOVE)
        e[k.POOL2] = np.where(paired & (e[k.POOL2] < 0), pool, e[k.POOL2])
        e[k.ACTOR] = self._actors(events)
        e[k.KEY] = self.keys.encode(events["key"])
        e[k.DIGEST] = self.digests.encode(events["digest"])
        transfers = kinds >= k.K_OFFER
        e[k.REF] = np.where(transfers, self.transfers.encode(events["transfer"]), -1)
        steps = (kinds == k.K_STEP_BEGIN) | (kinds == k.K_STEP_END)
        e[k.REF] = np.where(steps, events["step"].fill_null(-1).to_numpy(), e[k.REF])
        frees = (kinds == k.K_FREE) & events["to"].is_in(["cache", "session", "snapshot"]).fill_null(False).to_numpy()
        self._successors(e, events, np.flatnonzero(frees))
        e[k.FLAGS] |= np.where((kinds == k.K_SHARE) & (e[k.KEY] >= 0), k.F_RECORD, 0)
        lease = kinds == k.K_LEASE
        skew = events["time_ns"].to_numpy() - events["ref_ns"].to_numpy()
        until = events["until_ns"].fill_null(-1).to_numpy()
        e[k.TOKENS] = np.where(lease, np.where(until < 0, until, until - skew), e[k.TOKENS])
        e[k.TOK1] = np.where(moving & (e[k.TOK0] < 0), e[k.TOKENS], e[k.TOK1])
        e[k.TOK0] = np.where(moving & (e[k.TOK0] < 0) & (e[k.TOKENS] >= 0), 0, e[k.TOK0])

    def _actors(self, events: pl.DataFrame) -> I64:
        actor = self.actors.of_requests(events)
        holder = events["holder"]
        if holder.null_count() < len(holder):
            rows = np.flatnonzero(holder.is_not_null().to_numpy() & (actor == 0))
            tenants = events["tenant"]
            for row in rows.tolist():
                actor[row] = self.actors.holder(holder[row], self.actors.tenant(tenants[row]))
        return actor

    def _successors(self, e: I64, events: pl.DataFrame, rows: npt.NDArray[np.intp]) -> None:
        """`page.free ... to`: the holder, in the tenant of whoever lets go."""
        if not len(rows):
            return
        to = events["to"]
        tenants = np.concatenate([[-1], self.actors.request_tenants])
        for row in rows.tolist():
            actor = int(e[k.ACTOR, row])
            tenant = int(tenants[actor]) if actor < len(tenants) else -1
            e[k.REF, row] = self.actors.holder(to[row], tenant)

    def _lists(self, e: I64, events: pl.DataFrame) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Offsets into the flat page arrays."""
        first = _Flat(e, k.P_OFF, k.P_N)
        kinds = e[k.KIND]
        moving = (kinds == k.K_OFFER) | (kinds == k.K_BEGIN)
        first.add(events["pages"], ~moving & (kinds != k.K_POOL))
        first.add(events["src_pages"], moving)
        first.add(events["reserved"], kinds == k.K_POOL)
        second = _Flat(e, k.Q_OFF, k.Q_N)
        second.add(events["to_pages"], ~moving)
        second.add(events["dst_pages"], moving)
        third = _Flat(e, k.V_OFF, k.V_N)
        third.add(events["src_gen"], moving)
        return first.values(), second.values()

    def _operations(self, e: I64) -> None:
        kinds = e[k.KIND]
        e[k.OP] = np.where((kinds == k.K_READ) & (e[k.OP] < 0), k.OP_DECODE, e[k.OP])
        write = kinds == k.K_WRITE
        unnamed = np.where(e[k.ACTOR] > 0, k.OP_FORWARD, k.OP_DUMMY)
        e[k.OP] = np.where(write & (e[k.OP] < 0), unnamed, e[k.OP])
        dummy = write & (e[k.OP] == k.OP_DUMMY)
        e[k.ACTOR] = np.where(dummy, k.NOBODY, e[k.ACTOR])

    def _pairs(self, e: I64) -> None:
        """Row numbers of (request, pool)."""
        width = len(self.pools.names) + 1
        for column, pool in ((k.RP, k.POOL), (k.RP2, k.POOL2)):
            has = (e[k.ACTOR] >= 0) & (e[pool] >= 0)
            keys = e[k.ACTOR] * width + e[pool]
            unique, inverse = np.unique(keys[has], return_inverse=True)
            rows = np.array([self.pairs.setdefault(key, len(self.pairs)) for key in unique.tolist()], np.int64)
            e[column, has] = rows[inverse] if len(rows) else 0

    def _flags(self, e: I64) -> None:
        kinds = e[k.KIND]
        read = kinds == k.K_READ
        remote = (e[k.OP] == k.OP_TRANSFER) | (e[k.OP] == k.OP_OFFLOAD) | (e[k.OP] == k.OP_COPY)
        ends = read & (e[k.PHASE] == k.PH_END)
        closed = np.isin(e[k.RP] * 16 + e[k.OP], np.unique((e[k.RP] * 16 + e[k.OP])[ends])) if ends.any() else False
        keep = read & ~ends & (remote | (e[k.PHASE] == k.PH_BEGIN) | closed)
        e[k.FLAGS] |= np.where(keep, k.F_RECORD, 0)
        nobody = (kinds == k.K_FREE) & (e[k.ACTOR] == 0)
        e[k.FLAGS] |= np.where(nobody, k.F_ANYONE, 0)
        landing = (kinds == k.K_WRITE) & (e[k.OP] == k.OP_TRANSFER)
        self._transfer_writers |= set(np.unique(e[k.SOURCE][landing]).tolist())
        told = (kinds == k.K_DONE) & np.isin(e[k.SOURCE], list(self._transfer_writers))
        e[k.FLAGS] |= np.where(told, k.F_RECORD, 0)


class _Flat:
    """Concatenates list columns, each for the events that it belongs to."""

    def __init__(self, e: I64, offset: int, count: int) -> None:
        self._e, self._offset, self._count = e, offset, count
        self._parts: list[Column] = []
        self._length = 0
        e[offset] = 0
        e[count] = 0

    def add(self, column: pl.Series, where: npt.NDArray[np.bool_]) -> None:
        array = column.to_arrow()
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
        values = array.flatten().to_numpy(zero_copy_only=False)
        starts = np.cumsum(lengths) - lengths + self._length
        self._e[self._offset] = np.where(where, starts, self._e[self._offset])
        self._e[self._count] = np.where(where, lengths, self._e[self._count])
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
