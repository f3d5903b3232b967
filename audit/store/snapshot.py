"""One consistent view of the store: which segments counted at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import polars as pl

from kvwitness.audit.store.failures import CorruptSegment, StoreError
from kvwitness.audit.store.folders import folder_of, segments
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, load, state_of
from kvwitness.audit.store.schema import INGEST, INGEST_ROW, STORE_SCHEMA
from kvwitness.audit.store.seeds import ANY_SEED, SEED_FILE
from kvwitness.audit.store.segment import Segment, check_segment, read_segment
from kvwitness.audit.store.stats import Span, join_spans

Cache = dict[str, Segment]
"""Descriptions of segments that are not in the manifest, by name; names are never used twice."""


@dataclass(frozen=True)
class Snapshot:
    """The segments that made up the store when it was taken.

    It stays readable for the store's grace period after a compaction; afterwards reading fails because files
    are gone. It never gives a part of the rows.
    """

    layout: Layout
    manifest: Manifest
    loose: tuple[str, ...]
    """Names of the live and imported segments."""
    cache: Cache

    @property
    def names(self) -> list[str]:
        """Every segment: sealed, imported, live."""
        return [*(s.name for s in self.manifest.sealed), *self.loose]

    def settled(self) -> Snapshot:
        """The same without the segments in open folders, which nothing may replace yet (see rotation.py)."""
        known = set(self.manifest.live)
        return replace(self, loose=tuple(n for n in self.loose if folder_of(n) is None or n in known))

    def path(self, name: str) -> Path:
        """Where a segment lies."""
        return self.layout.root / name

    def segments(self) -> list[Segment]:
        """Descriptions of all segments, sealed ones first. Raises CorruptSegment for an unreadable footer."""
        return [*self.manifest.sealed, *(self._described(name) for name in self.loose)]

    def described(self) -> tuple[list[Segment], list[CorruptSegment]]:
        """The segments that can say what is in them, and what is wrong with the others.

        For whoever can go on without those; `segments` is for whoever needs all of them.
        """
        found: list[Segment] = list(self.manifest.sealed)
        damaged: list[CorruptSegment] = []
        for name in self.loose:
            try:
                found.append(self._described(name))
            except CorruptSegment as exc:
                damaged.append(exc)
        return found, damaged

    def _described(self, name: str) -> Segment:
        # Threads share the cache: another may take out what one has just put in.
        found = self.cache.get(name)
        if found is None:
            try:
                found = self.cache[name] = read_segment(self.path(name), name)
            except FileNotFoundError as exc:
                raise StoreError(
                    f"The segment {name} has gone since this snapshot was taken.",
                    "Somebody removed old files without a grace period. Take a new snapshot.",
                ) from exc
        return found

    def check(self) -> None:
        """Compare every segment with its checksum. Raises CorruptSegment for the first that is damaged.

        Decoding alone does not notice every damaged byte: do this where a wrong value would matter.
        """
        for name in self.names:
            check_segment(self.path(name), name)

    def marks(self) -> dict[str, int]:
        """ingest -> highest `ingest_row`: how far this snapshot goes. `events(since=...)` takes it later."""
        spans: dict[str | None, Span] = {}
        for segment in self.segments():
            join_spans(spans, segment.stats.ingests)
        return {name: span.last for name, span in spans.items() if name is not None and span.last is not None}

    def events(self, columns: list[str] | None = None, *, since: Mapping[str, int] | None = None) -> pl.LazyFrame:
        """All events, or with `since` (an earlier snapshot's `marks`) those that came in after it.

        Columns: those of STORE_SCHEMA, or `columns`, which may also ask for `segment` (the file that holds
        the row). Rows come in no particular order: sort by source and seq.
        """
        names = self.newer(since) if since else self.names
        wanted = list(STORE_SCHEMA.names) if columns is None else list(columns)
        unknown = sorted(set(wanted) - set(STORE_SCHEMA.names) - {"segment"})
        if unknown:
            raise StoreError(
                f"The store has no column {', '.join(unknown)}.",
                "`events` has: " + ", ".join(STORE_SCHEMA.names),
            )
        # The empty seed is always read, so that a store without events still has its columns.
        paths = [self.layout.root / ANY_SEED, *(self.path(n) for n in names)]
        frame = pl.scan_parquet(
            paths,
            glob=False,
            hive_partitioning=False,
            include_file_paths="segment" if "segment" in wanted else None,
        )
        if since:
            below = pl.col(INGEST).replace_strict(dict(since), default=-1, return_dtype=pl.Int64)
            frame = frame.filter(pl.col(INGEST_ROW) > below)
        if "segment" in wanted:
            frame = frame.with_columns(pl.col("segment").str.slice(len(str(self.layout.root)) + 1))
        return frame.select(wanted)

    def newer(self, since: Mapping[str, int]) -> list[str]:
        """Names of segments that have events which an earlier snapshot's `marks` do not cover."""
        return [
            s.name
            for s in self.segments()
            if any(
                span.last is not None and span.last > since.get(name or "", -1)
                for name, span in s.stats.ingests.items()
            )
        ]


def take(layout: Layout, cache: Cache, *, any_schema: bool = False) -> Snapshot:
    """A snapshot as of now.

    The manifest is looked at before and after the directories: if it was replaced in between, segments may
    have moved from flushed/ to sealed/ meanwhile, and the directories are read again.
    """
    while True:
        before = state_of(layout) if layout.manifest.exists() else None
        manifest = load(layout, any_schema=any_schema)
        loose = _loose(layout, manifest)
        if before is not None and state_of(layout) == before:
            break
    for name in set(cache) - set(loose):
        cache.pop(name, None)
    return Snapshot(layout, manifest, tuple(loose), cache)


def _loose(layout: Layout, manifest: Manifest) -> list[str]:
    gone = manifest.retired_names()
    live = [*manifest.live, *chain.from_iterable(segments(layout, manifest.first_open).values())]
    imported = (f"imports/{d.name}/{p.name}" for d in layout.imports.iterdir() if d.is_dir() for p in d.iterdir())
    names = [n for group in (imported, live) for n in sorted(group)]
    return [n for n in names if n.endswith(".parquet") and not n.endswith(f"/{SEED_FILE}") and n not in gone]
