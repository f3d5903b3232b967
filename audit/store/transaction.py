"""Changing the manifest: one at a time, durable, and published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from kvwitness.audit.store.catalog import publish, published
from kvwitness.audit.store.durable import FileLock
from kvwitness.audit.store.failures import StoreBusy, explained
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, load, save


@contextmanager
def manifest_lock(layout: Layout) -> Iterator[None]:
    """Held for the moment in which the manifest is read, changed and published."""
    lock = FileLock(layout.lock("manifest"))
    with explained("locking", lock.path):
        lock.acquire(wait=True)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def audit_lock(layout: Layout) -> Iterator[None]:
    """Held by an audit, from reading events to keeping its result, and by retention, which makes both void.

    Whoever needs the maintenance lock as well takes this one first.
    """
    lock = FileLock(layout.lock("audit"))
    with explained("locking", lock.path):
        lock.acquire(wait=True)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def maintenance_lock(layout: Layout, *, wait: bool) -> Iterator[None]:
    """Held by the one process that rewrites segments: compaction, retention, migration, quarantine.

    Raises StoreBusy when another holds it and `wait` is False.
    """
    lock = FileLock(layout.lock("maintenance"))
    with explained("locking", lock.path):
        taken = lock.acquire(wait=wait)
    if not taken:
        raise StoreBusy(
            f"Another process is maintaining the store {layout.root}.",
            "Wait for it to finish; only one compaction, retention or migration runs at a time.",
        )
    try:
        yield
    finally:
        lock.release()


def heal(layout: Layout) -> None:
    """Publish what the manifest says, where a process died between the two, the file was lost, or it has the
    views of an older version."""
    with manifest_lock(layout):
        manifest = load(layout)
        found = published(layout)
        if found is None or found.generation != manifest.generation or found.outdated:
            publish(layout, manifest)


def commit(layout: Layout, change: Callable[[Manifest], Manifest | None], *, any_schema: bool = False) -> Manifest:
    """Replace the manifest by what `change` makes of it, and publish it; returns the one that is now valid.

    `change` gets the current manifest and returns None to leave it as it is. The manifest is replaced first:
    if publishing fails then, the change holds all the same, and SQL readers keep the generation before it.
    """
    with manifest_lock(layout):
        old = load(layout, any_schema=any_schema)
        new = change(old)
        if new is None:
            return old
        new = replace(new, published_path=str(layout.root))
        save(new, layout)
        publish(layout, new)
        return new
