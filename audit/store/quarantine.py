"""Moving damage aside, so that the rest can be read, with the loss on record; and bringing a good copy
back."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from dataclasses import replace
from pathlib import Path

from kvwitness.audit.store.durable import place, sync_dir, sync_fd
from kvwitness.audit.store.expiry import lock_out
from kvwitness.audit.store.failures import CorruptSegment, StoreError, explained
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, Quarantined
from kvwitness.audit.store.rotation import closed
from kvwitness.audit.store.segment import check_segment, read_segment
from kvwitness.audit.store.snapshot import Cache, Snapshot, take
from kvwitness.audit.store.transaction import commit, maintenance_lock
from kvwitness.audit.store.verification import Problem, check_segments


def quarantine(layout: Layout, cache: Cache) -> list[Quarantined]:
    """Take damaged and missing segments out of the store. Readers that are open fail at their next query.

    The order keeps every answer right: first the new generation, which does without the files and has the
    loss on record; then readers of older ones are locked out; then the files are moved.
    """
    with maintenance_lock(layout, wait=True):
        cache.clear()
        closed(layout)
        snapshot = take(layout, cache).settled()
        problems, _ = check_segments(snapshot)
        if not problems:
            return []
        records = [_record(snapshot, problem) for problem in problems]
        names = {r.name for r in records}

        def change(manifest: Manifest) -> Manifest:
            return manifest.next(
                sealed=tuple(s for s in manifest.sealed if s.name not in names),
                live=tuple(n for n in manifest.live if n not in names),
                quarantined=(*manifest.quarantined, *records),
            )

        manifest = commit(layout, change)
        with explained("moving damaged segments to", layout.quarantine):
            lock_out(layout, manifest.generation)
            for record in records:
                if record.moved_to:
                    os.replace(layout.root / record.name, layout.root / record.moved_to)
            sync_dir(layout.quarantine)
    return records


def _record(snapshot: Snapshot, problem: Problem) -> Quarantined:
    path = snapshot.path(problem.name)
    target = f"quarantine/{uuid.uuid4().hex[:8]}-{path.name}" if path.exists() else ""
    return Quarantined(problem.name, target, problem.message, time.time_ns(), _rows(snapshot, problem.name))


def _rows(snapshot: Snapshot, name: str) -> int | None:
    for segment in snapshot.manifest.sealed:
        if segment.name == name:
            return segment.rows
    try:
        return read_segment(snapshot.path(name), name).rows
    except (CorruptSegment, OSError):
        return None


def reinstate(layout: Layout, name: str, source: str | Path) -> str:
    """Put an intact copy of a quarantined segment back; returns the name under which it counts now."""
    source = Path(source)
    try:
        segment = check_segment(source, name)
    except FileNotFoundError as exc:
        raise StoreError(f"There is no file {source}.", "Give the path of an intact copy of the segment.") from exc
    with maintenance_lock(layout, wait=True):
        new = f"sealed/ev-{uuid.uuid4().hex[:16]}.parquet"
        tmp = layout.tmp / f"{Path(new).name}.{os.getpid()}"

        def change(manifest: Manifest) -> Manifest:
            if name not in {q.name for q in manifest.quarantined}:
                known = ", ".join(q.name for q in manifest.quarantined) or "none"
                raise StoreError(f"No segment {name} is in quarantine.", f"In quarantine: {known}.")
            with explained("copying", source):
                shutil.copyfile(source, tmp)
                fd = os.open(tmp, os.O_RDONLY)
                try:
                    sync_fd(fd)
                finally:
                    os.close(fd)
                place(tmp, layout.root / new)
            return manifest.next(
                sealed=(*manifest.sealed, replace(segment, name=new)),
                quarantined=tuple(q for q in manifest.quarantined if q.name != name),
            )

        commit(layout, change)
    return new
