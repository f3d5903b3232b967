"""Removing what no longer counts: after a grace period, and only when readers of it have been locked out."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kvwitness.audit.store import catalog
from kvwitness.audit.store.durable import FileLock, remove, sync_dir
from kvwitness.audit.store.failures import explained
from kvwitness.audit.store.imports import staging_lock
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, Retired, load, save
from kvwitness.audit.store.transaction import manifest_lock

GRACE_S = 600.0
"""How long replaced files stay for readers that began before."""
_SETTLE_S = 60.0
"""After readers were locked out, queries that had just passed the marker may still be opening files."""
_LEFTOVER_S = 600.0
"""A file in tmp/ that was not written to for so long belongs to nobody."""


@dataclass(frozen=True)
class Leftovers:
    """Work that was never finished, because its process died: nothing in it was ever acknowledged."""

    staging: tuple[str, ...] = ()
    """Directories of imports and results."""
    files: tuple[str, ...] = ()
    """Half-written files, and merged segments that the manifest never came to name."""


def expire(layout: Layout) -> int:
    """Lock out readers of generations whose grace is over, and remove what was locked out before.

    The caller holds the maintenance lock. Returns the number of files removed.
    """
    with manifest_lock(layout), explained("removing old files in", layout.root):
        manifest = load(layout, any_schema=True)
        now = time.time_ns()
        if not any(_due(r, now) for r in manifest.retired):
            return 0
        _heal(layout, manifest)
        over = [r for r in manifest.retired if r.expired_ns is None and _due(r, now)]
        if over:
            lock_out(layout, max(r.generation for r in over))
        kept, removed, changed = [], 0, set()
        for item in manifest.retired:
            marked = replace(item, expired_ns=now) if item in over else item
            path = layout.root / marked.name
            if marked.expired_ns is not None and now >= marked.expired_ns + _settle_ns(marked):
                removed += _remove(path)
                changed.add(path.parent)
            if marked.expired_ns is None or path.exists():
                kept.append(marked)
        for directory in changed:  # a file that a power cut brings back must still be on record as retired
            if directory.exists():
                sync_dir(directory)
        save(replace(manifest, retired=tuple(kept)), layout)
        return removed


def _due(item: Retired, now: int) -> bool:
    if item.expired_ns is not None:
        return now >= item.expired_ns + _settle_ns(item)
    return now >= item.at_ns + int(item.grace_s * 1e9)


def _settle_ns(item: Retired) -> int:
    return int(min(item.grace_s, _SETTLE_S) * 1e9)


def _heal(layout: Layout, manifest: Manifest) -> None:
    """Files may go only when what is published does without them."""
    found = catalog.published(layout)
    if found is None or found.generation != manifest.generation:
        catalog.publish(layout, manifest)


def lock_out(layout: Layout, generation: int) -> None:
    """Make every reader that was opened before this generation fail at its next query."""
    for older, path in catalog.markers(layout).items():
        if older < generation:
            path.unlink(missing_ok=True)
    sync_dir(layout.generations)


def _remove(path: Path) -> int:
    """Remove a file or a directory; how many files that were."""
    if not path.is_dir():
        return int(remove(path))
    count = sum(1 for p in path.rglob("*") if p.is_file())
    shutil.rmtree(path, ignore_errors=True)
    return count


def leftovers(layout: Layout, *, age_s: float = _LEFTOVER_S) -> Leftovers:
    """What lies around from processes that died. The caller holds the maintenance lock."""
    with manifest_lock(layout):
        return _leftovers(layout, age_s)


def clean(layout: Layout, *, age_s: float = _LEFTOVER_S) -> Leftovers:
    """Remove the leftovers; returns what was removed. The caller holds the maintenance lock."""
    with manifest_lock(layout), explained("removing leftovers in", layout.root):
        found = _leftovers(layout, age_s)
        for name in (*found.staging, *found.files):
            _remove(layout.root / name)
    return found


def _leftovers(layout: Layout, age_s: float) -> Leftovers:
    # Merged segments come into sealed/ under the maintenance lock, results into results/ under the
    # manifest's: with both held, nothing there is on its way into the manifest.
    manifest = load(layout, any_schema=True)
    known = manifest.retired_names() | {s.name for s in manifest.sealed} | {r.directory for r in manifest.results}
    placed = (layout.relative(p) for d in (layout.sealed, layout.results) for p in d.iterdir())
    oldest = time.time() - age_s
    stale = (layout.relative(p) for p in layout.tmp.iterdir() if _modified(p) < oldest)
    return Leftovers(
        staging=tuple(layout.relative(d) for d in abandoned(layout)),
        files=tuple(sorted({*placed} - known | {*stale})),
    )


def abandoned(layout: Layout) -> list[Path]:
    """Directories in staging/ whose owner is gone: imports and results that were never committed."""
    out = []
    for directory in sorted(layout.staging.iterdir()):
        lock = FileLock(staging_lock(layout, directory.name))
        if lock.acquire(wait=False):
            lock.release(unlink=True)
            if directory.exists():
                out.append(directory)
    return out


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
