"""Bringing a file into a store, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvwitness.audit.store import ImportResult, Store
from kvwitness.audit.trace import ImportReport, TraceError
from kvwitness.audit.trace.stream import Progress
from kvwitness.collectors.sources import STDIN, Reader, collector_for


@dataclass(frozen=True)
class Imported:
    """What became of one file."""

    name: str
    report: ImportReport
    """What was read."""
    result: ImportResult
    """What the store took."""

    def to_dict(self) -> dict[str, Any]:
        """Both as plain JSON values."""
        return {
            "file": self.name,
            "duplicate": self.result.duplicate,
            "added": self.result.added,
            **self.report.to_dict(),
        }


def import_file(store: Store, source: str | Path, *, progress: Progress | None = None) -> Imported:
    """Bring the events of one file into a store; the same bytes a second time add nothing.

    `source` is a path or `-` for standard input; `progress` is called with raw bytes read and their total, if
    known. Lines that give no event are counted in the report and left out. Raises `TraceError` when the file
    cannot be read or holds no event at all, and a `StoreError` when the store cannot take it; nothing of the
    file is kept then.
    """
    name = "standard input" if str(source) == STDIN else str(source)
    reader = collector_for(source).read(source, progress)
    result = store.import_batches(
        _some(reader, name),
        sha256=lambda: reader.report.sha256,
        name=name,
        report=lambda: reader.report.to_dict(),
    )
    return Imported(name, reader.report, result)


def _some(reader: Reader, name: str) -> Iterator[pa.RecordBatch]:
    """All batches; an error in their place when there are none, so that an empty import is not committed."""
    yield from reader
    report = reader.report
    if report.events:
        return
    first = f"; line {report.bad[0][0]}: {report.bad[0][1]}" if report.bad else ""
    raise TraceError(
        f"{name}: no event in {report.lines} lines{first}",
        "A trace is JSON Lines, one event per line, plain or compressed with gzip or zstd.",
    )
