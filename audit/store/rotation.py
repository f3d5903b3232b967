"""Sending writers from one folder on to the next (see folders.py)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvwitness.audit.store.durable import sync_dir
from kvwitness.audit.store.failures import StoreBusy, explained
from kvwitness.audit.store.folders import far, make, name, segments
from kvwitness.audit.store.layout import Layout, parse_segment
from kvwitness.audit.store.manifest import Manifest, current_folder, load, save, state_of
from kvwitness.audit.store.transaction import manifest_lock


class Current:
    """The folder into which a writer flushes now."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._known: tuple[tuple[int, int, int], int] | None = None

    def _number(self) -> int:
        state = state_of(self._layout)
        if self._known is None or self._known[0] != state:
            self._known = state, current_folder(self._layout)
        return self._known[1]

    @contextmanager
    def held(self) -> Iterator[str]:
        """Its path inside the store; it is not closed before this block ends.

        Raises NewerStore when the store was migrated meanwhile, FileNotFoundError when the folder is gone.
        """
        while True:
            number = self._number()
            path = self._layout.root / name(number)
            try:
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                if self._number() == number:
                    raise
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if self._number() == number:  # whoever closes a folder names the next one before taking the lock
                    yield name(number)
                    return
            finally:
                os.close(lock)


def close(layout: Layout) -> bool:
    """Send writers on to a new folder, and put on record what is in those before it: nothing is added there any more.

    The caller holds the maintenance lock. No segment comes to count or stops counting by this, so that nothing is
    published. False, and nothing done, where folders of long ago are still waiting for their grace to be over.
    """
    with manifest_lock(layout), explained("opening a new folder in", layout.flushed):
        manifest = load(layout, any_schema=True)
        there = segments(layout, manifest.first_open)
        filled = [number for number, names in there.items() if names]
        if not filled:
            return True
        following = max(manifest.folder, filled[-1] + 1)
        if far(following, manifest.first_open, (*manifest.live, *(r.name for r in manifest.retired))):
            return False
        make(layout, following)
        save(replace(manifest, folder=following), layout)
    for number in there:
        if number < following:
            _drain(layout.root / name(number))
    with manifest_lock(layout), explained("closing folders in", layout.flushed):
        manifest = load(layout, any_schema=True)
        there = segments(layout, manifest.first_open)
        names = [n for number, inside in there.items() if number < following for n in inside]
        live = (*manifest.live, *(n for n in names if n not in manifest.live))
        save(replace(manifest, first_open=following, live=live, writers=numbers_used(manifest, names)), layout)
    return True


def closed(layout: Layout) -> None:
    """Close the folders. Raises StoreBusy where that has to wait."""
    if not close(layout):
        raise StoreBusy(
            f"The store {layout.root} has too many folders of replaced segments that wait for their grace to be over.",
            "Wait some minutes, and run `kvwitness store compact`.",
        )


def _drain(path: Path) -> None:
    """Wait for the writers that are at work in a folder, and make the names of what they wrote durable."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sync_dir(path)
    finally:
        os.close(lock)


def numbers_used(manifest: Manifest, names: Iterable[str]) -> dict[str, int]:
    """The highest segment number of each writer, with those of the segments `names`: none is used twice."""
    writers = dict(manifest.writers)
    for segment in names:
        if parsed := parse_segment(segment.rpartition("/")[2]):
            writers[parsed[0]] = max(writers.get(parsed[0], 0), parsed[1])
    return writers


def last_number(layout: Layout, writer: str) -> int:
    """The highest segment number that a writer has ever used.

    The folders are looked at before what is on record of closed ones: what leaves the one is in the other by then.
    """
    found = segments(layout, load(layout).first_open)
    numbers = (parse_segment(n.rpartition("/")[2]) for names in found.values() for n in names)
    open_ = max((parsed[1] for parsed in numbers if parsed and parsed[0] == writer), default=0)
    return max(open_, load(layout).writers.get(writer, 0))
