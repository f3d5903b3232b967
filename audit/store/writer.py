"""The writer: events into live segments, acknowledged when they are on the disk."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import pyarrow as pa

from kvwitness.audit.store.durable import FileLock, sync_dir
from kvwitness.audit.store.failures import StoreError, explained
from kvwitness.audit.store.intake import Intake
from kvwitness.audit.store.layout import FLUSHED, Layout, segment_name, writer_id
from kvwitness.audit.store.pseudonyms import Pseudonyms
from kvwitness.audit.store.rotation import Current, last_number
from kvwitness.audit.store.segment import GROUP_ROWS, write_segment

FLUSH_ROWS = 2 * GROUP_ROWS
FLUSH_BYTES = 64 << 20
"""`append` flushes by itself when this much is waiting, so that memory stays bounded."""


class Writer:
    """Appends events under a name of its own. One thread at a time works in it; calls from several are
    serialised.

    Records are acknowledged by `flush`: when it returns, they are in a segment that survives a crash of the
    process and, as far as the disk keeps its word, a power cut. If `flush` raises, nothing is lost from
    memory: the same records are written by the next `flush`, and not twice.
    """

    def __init__(
        self, layout: Layout, name: str, *, origin: str | None = None, pseudonyms: Pseudonyms | None = None
    ) -> None:
        self._layout = layout
        self._origin = origin
        self._guard = threading.RLock()
        self._lock, self.id = _own_name(layout, writer_id(name))
        self._number = last_number(layout, self.id)
        self._folder = Current(layout)
        self._intake = Intake(self.id, pseudonyms)
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._unsynced: str | None = None
        self.last_segment: str | None = None
        """Name of the segment that was acknowledged last; also set when `append` flushed by itself."""

    @property
    def waiting(self) -> int:
        """Records that are not acknowledged yet."""
        return self._rows

    def append(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take events in the event schema. They are acknowledged by the next `flush`; large amounts flush at
        once.

        Raises StoreError when the batch does not fit the schema; nothing of it is taken then.
        """
        with self._guard:
            self._check_owner()
            if self._unsynced is not None:
                self.flush()  # else these would be taken for acknowledged with the ones before
            for piece in self._intake.checked(batch):
                self._tables.append(piece)
                self._rows += piece.num_rows
                self._bytes += piece.nbytes
                if self._rows >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES:
                    self.flush()

    def flush(self) -> str | None:
        """Make everything appended so far durable; the name of the new segment, or None when nothing
        waited."""
        with self._guard:
            self._check_owner()
            if self._unsynced is not None:
                self._acknowledge(self._unsynced)
            elif self._rows:
                self._write()
            else:
                return None
            return self.last_segment

    def _write(self) -> None:
        number = self._number + 1
        file = segment_name(self.id, number)
        tmp = self._layout.tmp / f"{file}.{os.getpid()}"
        with explained("writing", self._layout.flushed / "..." / file):
            tmp.unlink(missing_ok=True)
            table, stats, clocks = self._intake.numbered(pa.concat_tables(self._tables), number, 0)
            write_segment(tmp, [table], stats, name=f"{FLUSHED}/{file}", origin=self._origin)
            with self._folder.held() as folder:
                name = f"{folder}/{file}"
                final = self._layout.root / name
                if final.exists():
                    raise StoreError(
                        f"{final} exists already, although no other process may use the writer name {self.id}.",
                        "Do not copy segments into flushed/ by hand. Restart the writer: it then continues after them.",
                    )
                os.rename(tmp, final)
                self._intake.accept(clocks)
                self._number = number
                self._unsynced = name
                self._acknowledge(name)

    def _acknowledge(self, name: str) -> None:
        # Readers see the segment since its rename. If the directory cannot be synced now, the next flush
        # tries only that again: writing the records once more would double them. A folder that was closed meanwhile
        # was synced then; one that is gone was merged.
        folder = (self._layout.root / name).parent
        with explained("syncing", folder), suppress(FileNotFoundError):
            sync_dir(folder)
        self._unsynced = None
        self._tables, self._rows, self._bytes = [], 0, 0
        self.last_segment = name

    def close(self) -> None:
        """Flush and give the name back."""
        with self._guard:
            if self._lock.mine:
                try:
                    self.flush()
                finally:
                    self._lock.release()

    def _check_owner(self) -> None:
        if not self._lock.mine:
            raise StoreError(
                f"The writer {self.id} is closed, or belongs to the process that this one was forked from.",
                "Open a writer in each process: `Store.open(path).writer(name)`.",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _own_name(layout: Layout, wanted: str) -> tuple[FileLock, str]:
    """A writer id that no living process uses: `wanted`, or else `wanted~2`, `wanted~3`, ..."""
    attempt = 1
    while True:
        ident = wanted if attempt == 1 else f"{wanted}~{attempt}"
        lock = FileLock(layout.lock(f"writer-{ident}"))
        with explained("locking", lock.path):
            if lock.acquire(wait=False):
                return lock, ident
        attempt += 1
