"""Checking a store: every byte against its checksum, every row for being there once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from kvwitness.audit.store import catalog, expiry
from kvwitness.audit.store.failures import CorruptSegment, ReadOnlyDisk, StoreBusy, StoreError
from kvwitness.audit.store.folders import folder_of
from kvwitness.audit.store.imports import list_imports
from kvwitness.audit.store.layout import BEFORE, FLUSHED, LIVE, Layout
from kvwitness.audit.store.manifest import Manifest, Quarantined
from kvwitness.audit.store.results import check_results
from kvwitness.audit.store.schema import INGEST, INGEST_ROW, SCHEMA_VERSION
from kvwitness.audit.store.seeds import damaged_seeds
from kvwitness.audit.store.segment import Segment, check_segment
from kvwitness.audit.store.snapshot import Cache, Snapshot, take
from kvwitness.audit.store.transaction import maintenance_lock

_RESTORE = (
    "Restore the file from a backup, or record the loss with `kvwitness store verify --quarantine`; until "
    "then queries and audits over the whole store fail."
)
_FOREIGN = (
    "The store does not put it there. Stop a collector of an earlier version that may have. "
    "Then move the file out of the store."
)
_WHERE = (f"{FLUSHED}/*/*/ev-*.parquet", f"{FLUSHED}/{BEFORE}/ev-*.parquet", f"{LIVE}/ev-*.parquet")
_PUBLISH = "Run `kvwitness store publish`."


@dataclass(frozen=True)
class Problem:
    """Something that `verify` found."""

    kind: str
    """`damaged`, `missing`, `doubled`, `stray`, `old-schema`, `catalog`, `moved`, `import-record`, `results`,
    `quarantined` or `leftover`."""
    name: str
    """The file, inside the store."""
    message: str
    advice: str
    severity: str = "error"
    """`error`: events or results are missing, doubled or unreadable. `note`: nothing that was acknowledged is
    affected, or the loss is on record already."""


def verify(layout: Layout, cache: Cache) -> list[Problem]:
    """Everything that is wrong with a store, errors first. Reads every byte; changes nothing but lock
    files."""
    cache.clear()
    snapshot = take(layout, cache)
    problems, sound = check_segments(snapshot)
    empty = damaged_seeds(layout, snapshot.manifest.first_open)
    problems += [Problem("damaged", n, f"The empty segment {n} is damaged or gone.", _PUBLISH) for n in empty]
    problems += _strays(layout)
    problems += old_schema(sound)
    problems += _doubled(snapshot, sound)
    problems += _records(layout)
    problems += _results(layout, snapshot.manifest)
    problems += _catalog(layout, snapshot.manifest)
    problems += [_known_loss(q) for q in snapshot.manifest.quarantined]
    problems += _leftovers(layout)
    return sorted(problems, key=lambda p: p.severity != "error")


def check_segments(snapshot: Snapshot) -> tuple[list[Problem], list[Segment]]:
    """(what is damaged or missing, what is sound) among the segments of a snapshot."""
    problems: list[Problem] = []
    sound: list[Segment] = []
    recorded = {s.name: s.sha256 for s in snapshot.manifest.sealed}
    for name in snapshot.names:
        try:
            segment = check_segment(snapshot.path(name), name)
        except CorruptSegment as exc:
            problems.append(Problem("damaged", name, exc.message, exc.advice))
        except FileNotFoundError:
            problems.append(Problem("missing", name, f"The segment {name} is not there.", _RESTORE))
        else:
            if recorded.get(name, segment.sha256) == segment.sha256:
                sound.append(segment)
            else:
                message = f"{name} is intact, but is not the file that the manifest names."
                problems.append(Problem("damaged", name, message, _RESTORE))
    return problems, sound


def _strays(layout: Layout) -> list[Problem]:
    """Segments that nobody reads: in folders that were closed, or where an earlier version kept them."""
    there = [layout.relative(p) for pattern in _WHERE for p in layout.root.glob(pattern)]
    snapshot = take(layout, {})  # after the look: what has come, or was replaced, since then is in it
    known = {*snapshot.names, *snapshot.manifest.retired_names()}
    return [
        Problem("stray", name, f"{name} lies where no segment counts any more.", _FOREIGN)
        for name in there
        if name not in known and folder_of(name) not in known and (layout.root / name).exists()
    ]


def old_schema(segments: Sequence[Segment]) -> list[Problem]:
    """Segments of another schema version than the store's."""
    return [
        Problem(
            "old-schema",
            s.name,
            f"{s.name} has schema version {s.schema_version}, the store {SCHEMA_VERSION}: a collector of "
            "another version writes into it.",
            "Stop that collector, then run `kvwitness store migrate`.",
        )
        for s in segments
        if s.schema_version != SCHEMA_VERSION
    ]


def _doubled(snapshot: Snapshot, sound: Sequence[Segment]) -> list[Problem]:
    """Ingests of which one row number occurs twice. Their row numbers are read only where segments
    overlap."""
    spans: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for segment in sound:
        for ingest, span in segment.stats.ingests.items():
            if ingest is not None and span.first is not None and span.last is not None:
                spans[ingest].append((span.first, span.last, segment.name))
    problems = []
    for ingest, parts in spans.items():
        parts.sort()
        if not any(b[0] <= a[1] for a, b in pairwise(parts)):
            continue
        rows = (
            pl.scan_parquet([snapshot.path(p[2]) for p in parts], glob=False, hive_partitioning=False)
            .filter(pl.col(INGEST) == ingest)
            .select(pl.len().alias("all"), pl.col(INGEST_ROW).n_unique().alias("distinct"))
            .collect()
        )
        extra = rows["all"][0] - rows["distinct"][0]
        if extra:
            message = f"{extra} rows of {ingest} are there more than once, in {', '.join(p[2] for p in parts)}."
            problems.append(Problem("doubled", parts[0][2], message, "Remove segment files that were copied by hand."))
    return problems


def _records(layout: Layout) -> list[Problem]:
    try:
        list_imports(layout)
    except StoreError as exc:
        return [Problem("import-record", "imports", exc.message, exc.advice)]
    return []


def _results(layout: Layout, manifest: Manifest) -> list[Problem]:
    return [
        Problem("results", d.name, f"{d.name}, a result of run {d.run_id}, is damaged: {d.how}.", "Audit again.")
        for d in check_results(layout, manifest)
    ]


def _catalog(layout: Layout, manifest: Manifest) -> list[Problem]:
    found = catalog.published(layout)
    name = layout.catalog.name
    if found is None:
        return [Problem("catalog", name, "store.duckdb is missing or cannot be read.", _PUBLISH, "note")]
    if found.path != str(layout.root):
        return [
            Problem("moved", name, f"The store was published at {found.path} and has moved since.", _PUBLISH, "note")
        ]
    if found.generation != manifest.generation or not catalog.marker(layout, found.generation).exists():
        return [Problem("catalog", name, "store.duckdb is older than the manifest.", _PUBLISH, "note")]
    return []


def _known_loss(item: Quarantined) -> Problem:
    rows = "an unknown number of" if item.rows is None else str(item.rows)
    return Problem(
        "quarantined",
        item.name,
        f"{rows} events of {item.name} are not readable: {item.reason}",
        f"The file lies in {item.moved_to or 'no place: it was missing'}. `Store.reinstate` puts a good copy back.",
        "note",
    )


def _leftovers(layout: Layout) -> list[Problem]:
    try:
        with maintenance_lock(layout, wait=False):
            found = expiry.leftovers(layout)
    except (StoreBusy, ReadOnlyDisk):
        return []
    advice = "Nothing in it was acknowledged. `kvwitness store compact` removes it."
    return [
        Problem("leftover", name, f"{name} is left from a process that died.", advice, "note")
        for name in (*found.staging, *found.files)
    ]
