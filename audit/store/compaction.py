"""Merging small segments into large ones, so that queries stay fast, while everybody reads and writes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvwitness.audit.store import rewrite
from kvwitness.audit.store.expiry import GRACE_S, Leftovers, clean, expire
from kvwitness.audit.store.failures import CorruptSegment
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.rotation import close
from kvwitness.audit.store.segment import TARGET_BYTES, TARGET_ROWS, Segment
from kvwitness.audit.store.snapshot import Cache, take
from kvwitness.audit.store.transaction import commit, maintenance_lock

DUE_SEGMENTS = 64
"""From this many live and imported segments on, a compaction is worth while."""
_GROUP_SEGMENTS = 256
"""At most so many are merged in one go, so that a compaction with a large backlog comes forward in steps."""
_GROWTH = 4
"""A sealed segment is merged again only with at least a quarter of its rows in new ones: so each row is
rewritten a number of times that grows with the logarithm of the store's size."""


@dataclass(frozen=True)
class Compaction:
    """What a compaction did."""

    merged: int = 0
    """Segments that were merged ..."""
    into: int = 0
    """... into so many."""
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    files_removed: int = 0
    """Files of earlier compactions whose grace period is over."""
    crowded: bool = False
    """Whether the newest live segments had to be left for later: too many folders of replaced ones wait for their grace
    to be over."""
    leftovers: Leftovers = field(default_factory=Leftovers)
    damaged: tuple[CorruptSegment, ...] = ()
    """Segments that were left alone because they fail their checksum, or cannot even say what is in them."""


def compact(layout: Layout, cache: Cache, *, grace_s: float = GRACE_S, wait: bool = False) -> Compaction:
    """One round: tidy up, merge what is small, publish. See `Store.compact`."""
    with maintenance_lock(layout, wait=wait):
        tidied = clean(layout)
        removed = expire(layout)
        crowded = bool(plan(take(layout, cache).described()[0])) and not close(layout)
        readable, damaged = take(layout, cache).settled().described()
        gone: list[Segment] = []
        new: list[Segment] = []
        for group in plan(readable):  # each is a change of its own: what is done stays, also if this process is killed
            good, bad = rewrite.sound(layout, group)
            damaged += bad
            if len(good) > 1 and (merged := rewrite.merge(layout, good)) is not None:
                _replace(layout, good, merged, grace_s)
                gone += good
                new.append(merged)
        if gone:
            removed += expire(layout)
    return Compaction(
        merged=len(gone),
        into=len(new),
        rows=sum(s.rows for s in new),
        bytes_before=sum(s.bytes for s in gone),
        bytes_after=sum(s.bytes for s in new),
        files_removed=removed,
        crowded=crowded,
        leftovers=tidied,
        damaged=tuple(damaged),
    )


def _replace(layout: Layout, old: Sequence[Segment], new: Segment, grace_s: float) -> None:
    commit(layout, lambda m: m.next(**rewrite.replaced(m, old, [new], grace_s=grace_s)))


def plan(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Which segments to merge with which: groups of at least two, each about one large segment's worth."""
    small = [s for s in segments if s.rows < TARGET_ROWS // 2 and s.bytes < TARGET_BYTES // 2]
    chosen = [s for s in small if not s.sealed]
    rows = sum(s.rows for s in chosen)
    for segment in sorted((s for s in small if s.sealed), key=lambda s: s.rows):
        if segment.rows > _GROWTH * rows:
            break
        chosen.append(segment)
        rows += segment.rows
    groups: list[list[Segment]] = []
    for segment in sorted(chosen, key=_arrival):
        last = groups[-1] if groups else None
        if (
            last is None
            or len(last) >= _GROUP_SEGMENTS
            or sum(s.rows for s in last) + segment.rows > TARGET_ROWS
            or sum(s.bytes for s in last) + segment.bytes > TARGET_BYTES
        ):
            groups.append([segment])
        else:
            last.append(segment)
    return [g for g in groups if len(g) > 1]


def _arrival(segment: Segment) -> tuple[str, int, str]:
    """Keeps the rows of one ingest together and in order."""
    first = min(((name or "", span.first or 0) for name, span in segment.stats.ingests.items()), default=("", 0))
    return (*first, segment.name)
