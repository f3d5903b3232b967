"""Bringing a whole store to the current schema version."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvwitness.audit.store import rewrite
from kvwitness.audit.store.expiry import expire
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, load
from kvwitness.audit.store.schema import SCHEMA_VERSION
from kvwitness.audit.store.seeds import ensure_seeds
from kvwitness.audit.store.snapshot import take
from kvwitness.audit.store.transaction import commit, maintenance_lock


@dataclass(frozen=True)
class MigrationResult:
    """What a migration did."""

    from_version: int
    to_version: int
    segments: int
    """Segments rewritten."""
    rows: int


def migrate(layout: Layout) -> MigrationResult:
    """Rewrite every segment of an older version, then switch over in one step; see `Store.migrate`."""
    with maintenance_lock(layout, wait=True):
        before = load(layout, any_schema=True).schema_version
        snapshot = take(layout, {}, any_schema=True)
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
        ensure_seeds(layout)
        commit(layout, change, any_schema=True)
        expire(layout)
    return MigrationResult(before, SCHEMA_VERSION, len(new), sum(s.rows for s in new))
