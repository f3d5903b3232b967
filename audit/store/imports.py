"""Importing a file once: staged out of sight, committed by one rename, keyed by the SHA-256 of the file's
bytes.

The segments of an import are written into a private directory. When everything is synced, the directory is
renamed to imports/<sha256>. That is the whole commit: before it nothing of the file is visible, after it
everything is, and since a directory of that name can exist only once, a second import of the same bytes finds
it there and adds nothing. A process that is killed before leaves a private directory without an owner, which
maintenance removes.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
import pyarrow as pa

from kvwitness.audit.store.durable import FileLock, make_dir, sync_dir, write_atomic
from kvwitness.audit.store.failures import StoreError, explained
from kvwitness.audit.store.intake import Intake
from kvwitness.audit.store.layout import IMPORT_PREFIX, Layout, segment_name
from kvwitness.audit.store.pseudonyms import Pseudonyms
from kvwitness.audit.store.segment import TARGET_BYTES, TARGET_ROWS, SegmentWriter
from kvwitness.audit.store.stats import Stats

RECORD = "import.json"


@dataclass(frozen=True)
class ImportRecord:
    """A committed import."""

    sha256: str
    name: str
    """What the file was called."""
    ingest: str
    """Value of the column `ingest` in its rows."""
    rows: int
    """Events that it brought; retention may have removed some since."""
    committed_ns: int
    report: Mapping[str, Any]
    """What the reader of the file counted: lines, bad lines, unknown kinds and so on."""


@dataclass(frozen=True)
class ImportResult:
    """What an import came to."""

    record: ImportRecord
    added: int
    """Events added now; 0 for a duplicate."""
    duplicate: bool
    """Whether the same bytes had been imported before."""


class Import:
    """An import in progress. Use as a context manager; without `commit` nothing remains of it."""

    def __init__(self, layout: Layout, *, name: str, pseudonyms: Pseudonyms | None = None) -> None:
        self.id = uuid.uuid4().hex[:16]
        self.name = name
        self.rows = 0
        self._layout = layout
        self._intake = Intake(f"{IMPORT_PREFIX}{self.id}", pseudonyms)
        self._number = 0
        self._writer: SegmentWriter | None = None
        self._stats = Stats()
        self._lock = FileLock(staging_lock(layout, self.id))
        self._dir = layout.staging / self.id
        with explained("staging an import in", self._dir):
            self._lock.acquire(wait=True)
            make_dir(self._dir)

    def append(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take events in the event schema, in the order of the file. Memory stays bounded: rows go to the
        disk as soon as they fill a row group."""
        for piece in self._intake.checked(batch):
            with explained("writing an import in", self._dir):
                self._take(piece)

    def _take(self, piece: pa.Table) -> None:
        if self._writer is not None and (self._stats.rows >= TARGET_ROWS or self._writer.size >= TARGET_BYTES):
            self._finish_segment()
        if self._writer is None:
            self._number += 1
            self._stats = Stats()
            self._writer = SegmentWriter(self._dir / segment_name(self._intake.ingest, self._number))
        table, stats, clocks = self._intake.numbered(piece, self._number, self._stats.rows)
        self._writer.write(table)
        self._stats.add(stats)
        self._intake.accept(clocks)
        self.rows += piece.num_rows

    def _finish_segment(self) -> None:
        if self._writer is not None:
            self._writer.finish(self._stats, name=self._layout.relative(self._writer.path), origin=self.name)
            self._writer = None

    def commit(self, sha256: str, report: Mapping[str, Any] | None = None) -> ImportResult:
        """Make the import part of the store, durably, unless the same bytes are there already."""
        with explained("writing an import in", self._dir):
            self._finish_segment()
        record = ImportRecord(
            sha256=_checked(sha256),
            name=self.name,
            ingest=self._intake.ingest,
            rows=self.rows,
            committed_ns=time.time_ns(),
            report=dict(report or {}),
        )
        final = self._layout.imports / sha256
        with explained("committing an import as", final):
            write_atomic(self._dir / RECORD, orjson.dumps(vars(record), option=orjson.OPT_INDENT_2), self._layout.tmp)
            # That synced the directory, with the names of the segments in it.
            try:
                os.rename(self._dir, final)
            except OSError:
                if (existing := find_import(self._layout, sha256)) is None:
                    raise
                # It may have become visible a moment ago: it counts as done only when it is durable.
                sync_dir(self._layout.imports)
                self.close()
                return ImportResult(existing, added=0, duplicate=True)
            sync_dir(self._layout.imports)
        self.close()
        return ImportResult(record, added=self.rows, duplicate=False)

    def close(self) -> None:
        """Drop what is not committed."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None
        if self._lock.mine:
            if self._dir.is_dir():
                shutil.rmtree(self._dir, ignore_errors=True)
            self._lock.release(unlink=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def import_batches(
    layout: Layout,
    batches: Iterable[pa.RecordBatch | pa.Table],
    *,
    sha256: str | Callable[[], str],
    name: str,
    report: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None,
    pseudonyms: Pseudonyms | None,
) -> ImportResult:
    """Import everything that `batches` yields; see `Store.import_batches`."""
    if isinstance(sha256, str) and (existing := find_import(layout, _checked(sha256))) is not None:
        with explained("syncing", layout.imports):
            sync_dir(layout.imports)
        return ImportResult(existing, added=0, duplicate=True)
    with Import(layout, name=name, pseudonyms=pseudonyms) as work:
        for batch in batches:
            work.append(batch)
        return work.commit(sha256 if isinstance(sha256, str) else sha256(), report() if callable(report) else report)


def find_import(layout: Layout, sha256: str) -> ImportRecord | None:
    """The committed import of a file with this SHA-256, or None."""
    return _read_record(layout.imports / sha256 / RECORD)


def list_imports(layout: Layout) -> list[ImportRecord]:
    """All committed imports, oldest first."""
    found = (_read_record(d / RECORD) for d in layout.imports.iterdir())
    return sorted((r for r in found if r and r.sha256), key=lambda r: (r.committed_ns, r.sha256))


def staging_lock(layout: Layout, ident: str) -> Path:
    """The lock whose holder works in staging/<ident>."""
    return layout.lock(f"staging-{ident}")


def _read_record(path: Path) -> ImportRecord | None:
    try:
        data = orjson.loads(path.read_bytes())
        return ImportRecord(**data)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as exc:
        raise StoreError(
            f"The record of an import, {path}, is damaged: {exc}.",
            "Restore the file from a backup. The events of the import are not affected.",
        ) from exc


def _checked(sha256: str) -> str:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise StoreError(f"{sha256!r} is not a SHA-256 in 64 lower-case hex digits.")
    return sha256
