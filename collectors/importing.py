"""Bringing a file into a store, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvwitness.audit.store import ImportResult, Store
from kvwitness.audit.trace import ImportReport, TraceError
from kvwitness.audit.trace.stream import Progress
from kvwitness.audit.wording import listing
from kvwitness.collectors import trace_file
from kvwitness.collectors.logs.calls import NOTHING, Given
from kvwitness.collectors.logs.rooms import Partners
from kvwitness.collectors.resuming import lines_taken
from kvwitness.collectors.scopes import (
    Spans,
    colliding,
    mark_of,
    marked,
    marked_report,
    overlapping,
    spans_of,
)
from kvwitness.collectors.sources import STDIN, FileCollector, Reader, collector_for, kind_of


@dataclass(frozen=True)
class Imported:
    """What became of one file."""

    name: str
    report: ImportReport
    """What was read."""
    result: ImportResult
    """What the store took."""
    read_as: str = "trace file"
    """What kind of file it was taken for."""
    mark: str | None = None
    """What was added to its names, because the store had other events under the same numbers (see `scopes`)."""

    def to_dict(self) -> dict[str, Any]:
        """Both as plain JSON values."""
        return {
            "file": self.name,
            "read_as": self.read_as,
            "duplicate": self.result.duplicate,
            "added": self.result.added,
            "mark": self.mark,
            **self.report.to_dict(),
        }


def import_file(
    store: Store,
    source: str | Path,
    *,
    progress: Progress | None = None,
    given: Given = NOTHING,
    collector: FileCollector | None = None,
) -> Imported:
    """Bring the events of one file into a store; the same bytes a second time add nothing.

    Of a log that has grown since it was imported, only what is new is taken. `given` is what a person says about the
    file; `collector` reads it, by default the one that recognises it.

    `source` is a path or `-` for standard input; `progress` is called with raw bytes read and their total, if
    known. Lines that give no event are counted in the report and left out. Raises `TraceError` when the file
    cannot be read or holds no event at all, and a `StoreError` when the store cannot take it; nothing of the
    file is kept then.
    """
    name = "standard input" if str(source) == STDIN else str(source)
    chosen = collector or collector_for(source)
    if chosen is not trace_file:
        return _imported_log(store, source, name, chosen, progress, given)
    try:
        return _imported(store, source, name, progress, None, checked=True)
    except _OverlappingError as found:
        sources, sha256 = found.sources, found.sha256
    if str(source) == STDIN or not Path(source).is_file():
        raise TraceError(
            f"{name} numbers events of {listing(sources, 3)} as events are numbered that the store has already.",
            "Save it as a file and import that: it must be read twice.",
        )
    again = collector_for(source).read(source)
    mark = mark_of(sha256) if any(colliding(store, again, sources)) else None
    return _imported(store, source, name, progress, mark, checked=False)


def _imported_log(
    store: Store, source: str | Path, name: str, collector: FileCollector, progress: Progress | None, given: Given
) -> Imported:
    """Import a log; its lines have no numbers that could collide with those of others."""
    skip = lines_taken(store, source)
    reader = collector.read(source, progress, replace(given, partners=Partners(store)), skip)
    result = store.import_batches(
        reader if skip else _some(reader, name),
        sha256=lambda: reader.report.sha256,
        name=name,
        report=lambda: reader.report.to_dict(),
    )
    return Imported(name, reader.report, result, kind_of(collector))


class _OverlappingError(Exception):
    """A file has numbers of sources within those that the store has of them."""

    def __init__(self, sources: list[str], sha256: str) -> None:
        super().__init__()
        self.sources, self.sha256 = sources, sha256


def _imported(
    store: Store, source: str | Path, name: str, progress: Progress | None, mark: str | None, *, checked: bool
) -> Imported:
    """Import a file, under names with a mark if there is one; `checked` stops where its numbers may be taken."""
    reader = collector_for(source).read(source, progress)
    batches = _some(reader, name)
    result = store.import_batches(
        (marked(batch, mark) for batch in batches) if mark else _not_taken(store, reader, batches, checked),
        sha256=lambda: reader.report.sha256,
        name=name,
        report=lambda: marked_report(reader.report.to_dict(), mark) if mark else reader.report.to_dict(),
    )
    return Imported(name, reader.report, result, mark=mark)


def _not_taken(
    store: Store, reader: Reader, batches: Iterator[pa.RecordBatch], checked: bool
) -> Iterator[pa.RecordBatch]:
    """All batches; if `checked`, an error after the last where the store may have their numbers from elsewhere."""
    spans: Spans = {}
    for batch in batches:
        spans_of(batch, spans)
        yield batch
    sha256 = reader.report.sha256
    if not checked or any(record.sha256 == sha256 for record in store.imports()):
        return
    if sources := overlapping(store, spans):
        raise _OverlappingError(sources, sha256)


def _some(reader: Reader, name: str) -> Iterator[pa.RecordBatch]:
    """All batches; an error in their place when there are none, so that an empty import is not committed."""
    yield from reader
    report = reader.report
    if report.events:
        return
    first = f"; line {report.bad[0][0]}: {report.bad[0][1]}" if report.bad else ""
    raise TraceError(
        f"{name}: no event in {report.lines} lines{first}",
        "A trace is JSON Lines, one event per line, plain or compressed with gzip or zstd. Which logs are understood, "
        "and how a mapping file (--mapping) makes another one be, stands in docs/logs.md.",
    )
