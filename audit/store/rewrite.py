"""Segments into a new one: merging, filtering and migrating in a stream of row groups."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvwitness.audit.store.durable import place
from kvwitness.audit.store.failures import CorruptSegment, explained
from kvwitness.audit.store.folders import folder_of
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest
from kvwitness.audit.store.migrations import upgrade
from kvwitness.audit.store.segment import Segment, SegmentWriter, check_segment
from kvwitness.audit.store.stats import FUTURE_TOLERANCE_NS, Clocks, Stats, recount

Keep = Callable[[pa.Table], pa.Table]
"""Takes rows and returns those that stay, in order."""


def sound(layout: Layout, segments: Iterable[Segment]) -> tuple[list[Segment], list[CorruptSegment]]:
    """Which segments pass their checksum, and what is wrong with the others.

    Everything that is about to be rewritten goes through here first: damage must not be sealed under a new
    checksum.
    """
    good, bad = [], []
    for segment in segments:
        try:
            check_segment(layout.root / segment.name, segment.name)
            good.append(segment)
        except CorruptSegment as exc:
            bad.append(exc)
    return good, bad


def merge(layout: Layout, inputs: Sequence[Segment], keep: Keep | None = None) -> Segment | None:
    """One new segment in sealed/ with the rows of `inputs` (that `keep` lets stay), in their order.

    It is complete and durable, but counts only when the manifest names it. None when no row stays. Memory is
    bounded by a few row groups.
    """
    name = f"sealed/ev-{uuid.uuid4().hex[:16]}.parquet"
    final = layout.root / name
    tmp = layout.tmp / f"{final.name}.{os.getpid()}"
    with explained("writing", final):
        writer = SegmentWriter(tmp)
        try:
            stats = Stats()
            for segment in inputs:
                stats.add(_copy(layout, segment, writer, keep))
            if not stats.rows:
                writer.abort()
                return None
            merged = writer.finish(stats, name=name, origin=_common_origin(inputs))
            place(tmp, final)
        except BaseException:
            writer.abort()
            raise
    return merged


def _copy(layout: Layout, segment: Segment, writer: SegmentWriter, keep: Keep | None) -> Stats:
    stats = Stats()
    clocks = Clocks()
    future = 0
    for table in rows_of(layout, segment):
        left = keep(table) if keep is not None else table
        if not left.num_rows:
            continue
        stats.add(recount(left))
        stats.backwards += clocks.backwards(left)
        future += _later_than(left, segment.created_ns + FUTURE_TOLERANCE_NS)
        writer.write(left)
    if stats.rows == segment.rows:
        # Nothing was removed: what was counted at writing holds. It cannot always be told from the rows.
        stats.backwards, stats.future = segment.stats.backwards, segment.stats.future
    else:
        stats.future = min(future, segment.stats.future)
    if keep is None and stats.rows != segment.rows:
        raise CorruptSegment(
            f"The segment {segment.name} has {stats.rows} rows; its footer says {segment.rows}.",
            "Run `kvwitness store verify`.",
        )
    return stats


def rows_of(layout: Layout, segment: Segment) -> Iterator[pa.Table]:
    """A segment's rows in the current schema, one row group after the other."""
    path = layout.root / segment.name
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                yield upgrade(file.read_row_group(group, use_threads=False), segment.schema_version)
    except (pa.ArrowException, OSError) as exc:
        if isinstance(exc, OSError) and exc.errno is not None:
            raise
        raise CorruptSegment(
            f"The segment {path} cannot be decoded: {exc}", "Run `kvwitness store verify --quarantine`."
        ) from exc


def replaced(manifest: Manifest, gone: Sequence[Segment], new: Sequence[Segment], *, grace_s: float) -> dict[str, Any]:
    """The changes of the manifest that put `new` in the place of `gone`."""
    names = {s.name for s in gone}
    live = tuple(n for n in manifest.live if n not in names)
    whole = _whole(names, live)
    # What waits in a folder that now goes as a whole goes with it, unless it has to go sooner.
    waiting = tuple(r for r in manifest.retired if folder_of(r.name) not in whole or r.grace_s < grace_s)
    return {
        "sealed": (*(s for s in manifest.sealed if s.name not in names), *new),
        "live": live,
        "retired": (*waiting, *manifest.newly_retired(sorted(whole), grace_s=grace_s)),
    }


def _whole(names: set[str], live: Iterable[str]) -> set[str]:
    """What goes when the segments `names` do and `live` stay: a folder of which nothing stays goes as a whole."""
    kept = {folder_of(n) for n in live}
    return {n if (folder := folder_of(n)) is None or folder in kept else folder for n in names}


def _later_than(table: pa.Table, limit_ns: int) -> int:
    count = pc.sum(pc.greater(table.column("time_ns"), limit_ns)).as_py()
    return int(count or 0)


def _common_origin(segments: Sequence[Segment]) -> str | None:
    origins = {s.origin for s in segments}
    return origins.pop() if len(origins) == 1 else None
