"""Chunks of the pool simulation as Arrow batches in the event schema."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks import _sim as sim
from kvwitness.audit.trace import EVENT_SCHEMA

if TYPE_CHECKING:
    from benchmarks.pools import Chunk, Plan

GATEWAY = "gateway"
KEPT_BYTES_PER_PAGE = 36_864  # what a transfer says it moved, per page

_EVENTS = {
    sim.RECEIVED: "request.received",
    sim.FINISHED: "request.finished",
    sim.ALLOC: "page.alloc",
    sim.FREE: "page.free",
    sim.FREE_TO_CACHE: "page.free",
    sim.EVICT: "page.free",
    sim.WRITE: "page.write",
    sim.LAND: "page.write",
    sim.READ: "page.read",
    sim.SHARE: "page.share",
    sim.PUBLISH: "page.publish",
    sim.UNPUBLISH: "page.unpublish",
    sim.BEGIN: "transfer.begin",
    sim.DONE: "transfer.done",
}
_REASONS = {sim.FREE: "finish", sim.FREE_TO_CACHE: "finish", sim.EVICT: "evict"}
_OPS = {sim.WRITE: "forward", sim.LAND: "transfer", sim.READ: "decode"}


def engine_name(pool: int) -> str:
    """Engine that owns a pool."""
    return f"eng-{pool + 1}"


def source_name(source: int) -> str:
    """Who reports the events of an engine."""
    return f"{engine_name(source)}/0"


def pool_name(pool: int) -> str:
    """Id space of a pool's pages."""
    return f"{engine_name(pool)}/0/full"


def request_name(request: int) -> str:
    """Request id of a request code."""
    return f"r{request + 1:08d}"


def tenant_name(tenant: int) -> str:
    """Tenant id of a tenant code."""
    return f"t-{tenant + 1:03d}"


def header(plan: Plan, start_ns: int) -> pa.RecordBatch:
    """Policy, limits and clock of every pool: three rows each, before the first event at `start_ns`."""
    rows: list[dict[str, Any]] = []
    for pool in range(plan.pools):
        first = start_ns - 1_000_000_000
        common = {"source": source_name(pool)}
        rows.append(
            common
            | {
                "event": "engine.pool",
                "time_ns": first,
                "seq": 1,
                "pool": pool_name(pool),
                "page_tokens": plan.page_tokens,
                "pages_total": plan.pool_pages + 1,
                "kind": "kv",
                "reserved": [0],
                "scrub": "never",
                "sharing": "global" if plan.shares else "none",
            }
        )
        limit = plan.max_pages * plan.page_tokens
        rows.append(
            common
            | {
                "event": "engine.limits",
                "time_ns": first + 1000,
                "seq": 2,
                "engine": engine_name(pool),
                "role": "unified",
                "advertised_tokens": limit,
                "input_limit_tokens": limit,
                "pool_tokens": plan.pool_pages * plan.page_tokens,
            }
        )
        rows.append(
            common
            | {
                "event": "engine.clock",
                "time_ns": first + 2000,
                "seq": 3,
                "engine": engine_name(pool),
                "offset_s": 0.0,
                "uncertainty_s": 1e-7,
            }
        )
    table = pa.Table.from_pylist(rows, schema=EVENT_SCHEMA).combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=EVENT_SCHEMA)


def to_batch(chunk: Chunk, plan: Plan) -> pa.RecordBatch:
    """One chunk in the event schema; columns that no simulated event has are null."""
    kind = chunk.kind
    values = _common(chunk, plan) | _numbers(chunk) | _lists(chunk)
    if np.isin(kind, [sim.BEGIN, sim.DONE]).any():
        values |= _transfers(chunk)
    if np.isin(kind, [sim.SHARE, sim.PUBLISH, sim.UNPUBLISH]).any():
        values |= _keys(chunk)
    n = len(chunk)
    columns = [
        values[field.name].cast(field.type) if field.name in values else _nulls(field.type, n) for field in EVENT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _common(chunk: Chunk, plan: Plan) -> dict[str, pa.Array]:
    """Who, what and when."""
    sources = [source_name(i) for i in range(plan.pools)] + [GATEWAY]
    pools = [pool_name(i) for i in range(plan.pools)]
    received = chunk.kind == sim.RECEIVED
    on_pool = np.where(chunk.kind == sim.BEGIN, -1, chunk.pool)
    return {
        "time_ns": pa.array(chunk.time_ns),
        "event": _coded(chunk.kind, _EVENTS),
        "source": _named(chunk.source.astype(np.int64), sources),
        "seq": pa.array(chunk.seq),
        "request": _drawn(chunk.request, request_name),
        "tenant": _drawn(chunk.tenant.astype(np.int64), tenant_name),
        "tenant_source": _named(np.where(received, 0, -1), ["gateway_auth"]),
        "pool": _named(on_pool, pools),
        "op": _coded(chunk.kind, _OPS),
        "reason": _coded(chunk.kind, _REASONS),
        "to": _coded(chunk.kind, {sim.FREE_TO_CACHE: "cache"}),
        "holder": _coded(chunk.kind, {sim.EVICT: "cache"}),
        "finish_reason": _coded(chunk.kind, {sim.FINISHED: "stop"}),
    }


def _numbers(chunk: Chunk) -> dict[str, pa.Array]:
    """Token ranges and counts."""
    kind = chunk.kind
    received, finished = kind == sim.RECEIVED, kind == sim.FINISHED
    ranged = (kind == sim.WRITE) | (kind == sim.LAND) | (kind == sim.READ) | (kind == sim.SHARE)
    return {
        "tok_first": _where(ranged, chunk.a),
        "tok_end": _where(ranged, chunk.b),
        "prompt_tokens": _where(received | finished, chunk.a),
        "max_new_tokens": _where(received, chunk.b),
        "completion_tokens": _where(finished, chunk.b),
        "cached_tokens": _where(finished, chunk.c),
        "status": _where(finished, np.full(len(chunk), 200)),
    }


def _lists(chunk: Chunk) -> dict[str, pa.Array]:
    """Page lists; a transfer's row holds two of equal length."""
    counts = np.diff(chunk.offsets)
    begins = chunk.kind == sim.BEGIN
    if not begins.any():
        return {"pages": _list(counts, chunk.pages, counts > 0)}
    half = np.where(begins, counts // 2, 0)
    at = np.arange(len(chunk.pages)) - np.repeat(chunk.offsets[:-1], counts)
    in_begin = np.repeat(begins, counts)
    in_source = at < np.repeat(half, counts)
    alone = np.where(begins, 0, counts)
    return {
        "pages": _list(alone, chunk.pages[~in_begin], alone > 0),
        "src_pages": _list(half, chunk.pages[in_begin & in_source], begins),
        "dst_pages": _list(half, chunk.pages[in_begin & ~in_source], begins),
    }


def _transfers(chunk: Chunk) -> dict[str, pa.Array]:
    """A transfer is named after its request: each has at most one."""
    begins, done = chunk.kind == sim.BEGIN, chunk.kind == sim.DONE
    moving = begins | done
    pools = int(max(chunk.pool.max(), chunk.c[begins].max(initial=0))) + 1
    names = [pool_name(i) for i in range(pools)]
    return {
        "transfer": _drawn(np.where(moving, chunk.request, -1), lambda r: f"x{r + 1}"),
        "src_pool": _named(np.where(begins, chunk.pool, -1), names),
        "dst_pool": _named(np.where(begins, chunk.c, -1), names),
        "tokens": _where(moving, chunk.a),
        "pages_ok": _where(done, chunk.b),
        "bytes": _where(done, chunk.b * KEPT_BYTES_PER_PAGE),
        "observer": pc.if_else(pa.array(done), _drawn(chunk.source.astype(np.int64), source_name), None),
    }


def _keys(chunk: Chunk) -> dict[str, pa.Array]:
    """Keys of published prefixes; every one has one namespace and one input digest."""
    kind = chunk.kind
    published, shared = kind == sim.PUBLISH, kind == sim.SHARE
    keyed = published | shared | (kind == sim.UNPUBLISH)
    return {
        "key": _drawn(np.where(keyed, chunk.c, -1), lambda key: f"k:{key:x}"),
        "digest": _drawn(np.where(published | shared, chunk.c, -1), lambda key: f"d:{key:x}"),
        "ns": _named(np.where(published | shared, 0, -1), ["{}"]),
    }


@lru_cache(maxsize=32)
def _empty_column(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind)


def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """Nulls that all batches share, since most columns hold nothing else."""
    return _empty_column(kind, 1 << max(16, (rows - 1).bit_length())).slice(0, rows)


def _list(counts: NDArray[np.int64], values: NDArray[np.uint32], valid: NDArray[np.bool_]) -> pa.ListArray:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array(~valid))


def _where(valid: NDArray[np.bool_], values: NDArray[np.int64]) -> pa.Array:
    return pa.array(values, mask=~valid)


def _named(index: NDArray[np.int64], names: list[str]) -> pa.Array:
    """names[index]; null where the index is negative."""
    codes = pa.array(index.astype(np.int32), mask=index < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).cast(pa.string())


def _drawn(codes: NDArray[np.int64], name: Callable[[int], str]) -> pa.Array:
    """Names of codes of which a chunk has few; null where the code is negative."""
    unique, index = np.unique(codes, return_inverse=True)
    absent = int(np.searchsorted(unique, 0))
    return _named(index - absent, [name(int(code)) for code in unique[absent:]] or [""])


def _coded(kind: NDArray[np.uint8], names: dict[int, str]) -> pa.Array:
    table = np.full(256, -1, np.int64)
    table[list(names)] = np.arange(len(names))
    return _named(table[kind], list(names.values()))
