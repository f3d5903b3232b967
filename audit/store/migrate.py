"""Bringing a whole store to the current schema version."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from kvwitness.audit.store import rewrite
from kvwitness.audit.store.durable import make_dir, sync_dir
from kvwitness.audit.store.expiry import expire
from kvwitness.audit.store.failures import explained
from kvwitness.audit.store.folders import make
from kvwitness.audit.store.layout import BEFORE, FLUSHED, LIVE, Layout, parse_segment
from kvwitness.audit.store.manifest import LAYOUT_VERSION, Manifest, layout_version, load, save
from kvwitness.audit.store.rotation import closed, numbers_used
from kvwitness.audit.store.schema import SCHEMA_VERSION
from kvwitness.audit.store.seeds import ensure_seeds
from kvwitness.audit.store.snapshot import take
from kvwitness.audit.store.transaction import commit, heal, maintenance_lock, manifest_lock


@dataclass(frozen=True)
class MigrationResult:
    """What a migration did."""

    from_version: int
    to_version: int
    segments: int
    """Segments rewritten."""
    rows: int
    from_layout: int
    """Version of the directories before."""
    to_layout: int


def migrate(layout: Layout) -> MigrationResult:
    """Rewrite every segment of an older version, then switch over in one step; see `Store.migrate`."""
    with maintenance_lock(layout, wait=True):
        from_layout = layout_version(layout)
        before = load(layout, any_schema=True).schema_version
        if from_layout < LAYOUT_VERSION:
            _move_live(layout)
        closed(layout)
        snapshot = take(layout, {}, any_schema=True).settled()
        old = [s for s in snapshot.segments() if s.schema_version < SCHEMA_VERSION]
        good, bad = rewrite.sound(layout, old)
        if bad:
            raise bad[0]
        new = [s for s in (rewrite.merge(layout, [segment]) for segment in good) if s is not None]

        def change(manifest: Manifest) -> Manifest | None:
            if not old and manifest.schema_version == SCHEMA_VERSION:
                return None
            changed = manifest.next(**rewrite.replaced(manifest, old, new, grace_s=0.0))
            return replace(changed, schema_version=SCHEMA_VERSION)

        # The views take their columns from these; they are put right before anything is published over them.
        ensure_seeds(layout, load(layout, any_schema=True).first_open)
        commit(layout, change, any_schema=True)
        heal(layout)
        expire(layout)
    return MigrationResult(
        before, SCHEMA_VERSION, len(new), sum(s.rows for s in new), from_layout=from_layout, to_layout=LAYOUT_VERSION
    )


def _move_live(layout: Layout) -> None:
    """From layout 1, in which all live segments lay in live/, to folders.

    The directory goes to another place as it is. A collector of the earlier version that is still there then fails to
    write, and acknowledges nothing; views of the earlier version fail to read.
    """
    before = f"{FLUSHED}/{BEFORE}"
    with manifest_lock(layout), explained("moving live segments to", layout.root / before):
        manifest = load(layout, any_schema=True)
        old = layout.root / LIVE
        make_dir(layout.flushed)
        if old.is_dir():  # else an earlier attempt came so far
            os.rename(old, layout.root / before)
            sync_dir(layout.flushed)
            sync_dir(layout.root)
        make(layout, 0)
        names = sorted(f"{before}/{p.name}" for p in (layout.root / before).iterdir() if parse_segment(p.name))
        retired = tuple(replace(r, name=_moved(r.name)) for r in manifest.retired)
        gone = {r.name for r in retired} | {_moved(q.name) for q in manifest.quarantined}
        live = tuple(n for n in names if n not in gone)
        # A generation of its own: should this process die now, whoever reads next publishes it.
        save(manifest.next(live=live, retired=retired, writers=numbers_used(manifest, names)), layout)


def _moved(name: str) -> str:
    return f"{FLUSHED}/{BEFORE}/{name.removeprefix(f'{LIVE}/')}" if name.startswith(f"{LIVE}/") else name
