"""Follows all rings of a directory into a store: each event once, each loss as a `telemetry.gap`.

Every number of a ring becomes one row, or is covered by a gap that stands at the last number it covers. A restarted
engine makes new rings, which are sources of their own; the rings of dead processes are removed once all of them is in
the store.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store, StoreBusy, StoreError
from kvwitness.audit.trace import EVENT_SCHEMA, ImportReport, TraceError
from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.reader import BATCH_BYTES
from kvwitness.audit.trace.ring import SUFFIX, UNFINISHED
from kvwitness.audit.trace.rows import RowBuilder
from kvwitness.collectors.ring_file import Event, Loss, RingFile
from kvwitness.collectors.tail_state import Mark, State

WRITER = "tail"
BATCH_ROWS = 65_536
"""A flush writes at most this many rows: so many the store takes in one piece, whole or not at all."""
_READ = 4096
_COMPACT_EVERY = 64
_STALE_S = 60.0


@dataclass
class Followed:
    """What became of one ring so far."""

    ring: RingFile
    events: int = 0
    """Events read by this tail."""
    lost: int = 0
    """Events that are known to be missing, found by this tail."""
    gaps: int = 0
    ended: bool = False
    """Nobody writes it any more, and all of it has been read."""
    removed: bool = False
    differing: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Kinds of which the writer counted another number than was accounted for: (emitted, accounted for)."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        ring = self.ring
        return {
            "ring": ring.path.name,
            "source": ring.source,
            "pid": ring.pid,
            "position": ring.position,
            "events": self.events,
            "lost": self.lost,
            "gaps": self.gaps,
            "failed": ring.failed,
            "scrubbed": ring.scrubbed,
            "state": "removed" if self.removed else "ended" if self.ended else "live",
            "kinds": dict(ring.seen()),
            "differing": {kind: list(counts) for kind, counts in self.differing.items()},
        }


class Tail:
    """Reads the rings of `directory` into `store`; a context manager, one at a time for a directory.

    Raises KvwitnessError when the directory is not there or another tail is at it.
    """

    def __init__(self, directory: Path, store: Store, *, say: Callable[[str], None] = lambda text: None) -> None:
        self._directory, self._store, self._say = directory, store, say
        if not directory.is_dir():
            raise KvwitnessError(f"{directory} is not a directory.", "Name the one that the tracer writes to.")
        self._lock = _locked(directory)
        self._state = State.load(directory, store.info()["store_id"])
        self._last = _last_numbers(store)
        self._state.resume(self._last)
        self.report = ImportReport()
        """What was wrong with events, and what was dropped from them."""
        self._rows = RowBuilder(self.report)
        self._writer = store.writer(WRITER, origin=str(directory))
        self._unacknowledged = False
        self._flushes = 0
        self.rings: dict[str, Followed] = {}
        """By file name, those that were removed included."""
        self._refused: set[str] = set()

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Read what is new in all rings; how many events and losses. Flushes by itself when there is much.

        Raises StoreError where that fails; nothing is lost then, and the next `flush` tries again.
        """
        self._discover()
        return sum(self._drain(followed) for followed in self.rings.values() if not followed.ended)

    def _discover(self) -> None:
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            if path.name in self.rings or path.name in self._refused:
                continue
            try:
                ring = RingFile(path)
            except TraceError as error:
                self._refused.add(path.name)
                self._say(str(error))
                continue
            self._place(ring)
            self.rings[path.name] = Followed(ring)
        for path in self._directory.glob(f"*{UNFINISHED}"):
            _remove_stale(path)

    def _place(self, ring: RingFile) -> None:
        """Begin where the store's knowledge of the ring ends."""
        mark = self._state.done.get(ring.path.name)
        stored = self._last.get(ring.source, 0)
        if mark is not None and mark.position >= stored:
            ring.position = mark.position
            ring.counts = None if mark.counts is None else np.array(mark.counts, np.int64)
        elif stored:
            ring.position, ring.counts = stored, None

    def _drain(self, followed: Followed) -> int:
        """Read a ring up to where it was when this began."""
        ring, taken = followed.ring, 0
        nobody = ring.abandoned()  # asked first: what is read after it is all there will be
        until = ring.head()
        while ring.position < until:
            for one in ring.read(_READ, alive=not nobody):
                self._take(followed, one)
                taken += 1
            if self._rows.rows + 2 * _READ > BATCH_ROWS or self._rows.weight > BATCH_BYTES:
                self.flush()
        if nobody:
            followed.ended = True
            self._compare(followed)
        return taken

    def _take(self, followed: Followed, one: Event | Loss) -> None:
        source = followed.ring.source
        if isinstance(one, Event):
            fields = {"source": source, "seq": one.seq, **one.fields}
            try:
                self._rows.add_parsed(one.seq, one.kind, one.time_ns, fields, one.bytes)
                followed.events += 1
                return
            except Rejected as rejected:
                one = Loss(one.seq, one.seq, f"rejected: {rejected.reason}", one.time_ns, {one.kind: 1})
        followed.lost += one.dropped
        followed.gaps += 1
        gap = {"source": source, "seq": one.to_seq, "from_seq": one.from_seq, "to_seq": one.to_seq}
        gap |= {"dropped": one.dropped, "reason": one.reason}
        if one.kinds:
            gap |= {"lost_kinds": list(one.kinds), "lost_counts": list(one.kinds.values())}
        self._rows.add_parsed(one.to_seq, "telemetry.gap", one.time_ns, gap, 0)

    def _compare(self, followed: Followed) -> None:
        """Hold what the writer counted against what was accounted for, kind by kind."""
        ring = followed.ring
        if ring.counts is None:
            return
        emitted, seen = ring.emitted(), ring.seen()
        followed.differing = {
            kind: (emitted[kind], seen[kind]) for kind in emitted | seen if emitted[kind] != seen[kind]
        }
        for kind, (wrote, read) in followed.differing.items():
            self._say(f"{ring.path.name}: the writer counted {wrote} {kind}, {read} were accounted for")

    # -- writing ----------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Make what was read durable in the store, and remember it as done; how many rows.

        Raises StoreError when the store cannot take it now; the next call tries the same again.
        """
        if not self._unacknowledged:
            batch = self._rows.take()
            if not batch.num_rows:
                self._retire()
                return 0
            self._state.begin({name: _mark(f.ring) for name, f in self.rings.items() if not f.removed})
            self._unacknowledged = True
            self._writer.append(_without_lines(batch))
        rows = self._writer.waiting
        self._writer.flush()
        self._state.finish()
        self._unacknowledged = False
        self._retire()
        self._compact()
        return rows

    def _retire(self) -> None:
        """Remove rings that are over, once the store has all of them."""
        over = [
            (name, f)
            for name, f in self.rings.items()
            if f.ended and not f.removed and (f.ring.position == 0 or self._known(name) >= f.ring.position)
        ]
        for name, followed in over:
            followed.ring.remove()
            followed.removed = True
            self._state.done.pop(name, None)
        if over:
            self._state.save()

    def _known(self, name: str) -> int:
        done = self._state.done.get(name)
        return max(done.position if done else 0, self._last.get(self.rings[name].ring.source, 0))

    def _compact(self) -> None:
        self._flushes += 1
        if self._flushes % _COMPACT_EVERY or not self._store.compaction_due():
            return
        with suppress(StoreBusy):  # somebody else is at it
            self._store.compact()

    # -- running ----------------------------------------------------------------------------------------

    def run(
        self,
        stopped: Callable[[], bool],
        *,
        poll_s: float = 0.1,
        flush_s: float = 1.0,
        progress: Callable[[int], None] = lambda events: None,
    ) -> None:
        """Follow until `stopped()`, then read and flush once more.

        `progress` is called with the events so far. While the store cannot take anything, that is said and tried again
        once in `flush_s`; the rings hold what comes meanwhile, as long as they can.
        """
        total, due = 0, time.monotonic() + flush_s
        while not stopped():
            try:
                if not self._unacknowledged:
                    total += self.poll()
                    progress(total)
                if time.monotonic() >= due:
                    due = time.monotonic() + flush_s
                    self.flush()
            except StoreError as error:
                self._say(f"the store cannot take events now, and will be asked again: {error}")
                due = time.monotonic() + flush_s
            time.sleep(poll_s)
        self.once()

    def once(self) -> None:
        """Read and write all that is there now."""
        if self._unacknowledged:
            self.flush()
        self.poll()
        self.flush()

    def lost(self) -> Counter[str]:
        """Source -> events known to be missing, of what this tail read."""
        return Counter({f.ring.source: f.lost for f in self.rings.values() if f.lost})

    def close(self) -> None:
        """Let go of the store, the rings and the directory."""
        try:
            self._writer.close()
        finally:
            for followed in self.rings.values():
                if not followed.removed:
                    followed.ring.close()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mark(ring: RingFile) -> Mark:
    counts = None if ring.counts is None else tuple(ring.counts.tolist())
    return Mark(ring.source, ring.position, counts)


def _locked(directory: Path) -> int:
    fd = os.open(directory / "tail.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise KvwitnessError(
            f"Another `kvwitness tail` follows {directory}.", "One is enough; stop it, or name another directory."
        ) from None
    return fd


def _last_numbers(store: Store) -> dict[str, int]:
    """Source -> the last number that the store has of it."""
    out: dict[str, int] = {}
    for segment in store.segments():
        for source, span in segment.sources.items():
            if source is not None and span.last is not None:
                out[source] = max(out.get(source, 0), span.last)
    return out


def _without_lines(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Nothing here has a line in a file."""
    at = EVENT_SCHEMA.get_field_index("line")
    return batch.set_column(at, EVENT_SCHEMA.field(at), pa.nulls(batch.num_rows, pa.int64()))


def _remove_stale(path: Path) -> None:
    """Remove what is left of a process that died while it made a ring."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # it is a ring by now, or gone
    try:
        if time.time() - os.fstat(fd).st_mtime > _STALE_S:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except OSError:
        pass  # it is being made
    finally:
        os.close(fd)
