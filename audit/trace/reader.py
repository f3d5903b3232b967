"""Reads traces in the JSON Lines form into batches of the event schema, accounting for every line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson
import pyarrow as pa

from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.report import ImportReport, TraceError
from kvwitness.audit.trace.rows import RowBuilder
from kvwitness.audit.trace.schema import EVENT_SCHEMA
from kvwitness.audit.trace.stream import MAX_LINE, Overlong, Progress, Source, opened, read_lines

BATCH_BYTES = 64 * 2**20
"""A batch ends early when its rows unfold to more than this."""
MAX_IN_MEMORY = 2**30
"""Most page ids that `load_trace` holds."""
_BOM = b"\xef\xbb\xbf"
_SEQ = re.compile(rb'"seq"\s*:\s*([0-9]{1,18})\s*[,}]')
_SOURCE = re.compile(rb'"source"\s*:\s*"([^"\\]{1,256})"')


class TraceReader(Iterator[pa.RecordBatch]):
    """Batches of a trace; `report` is filled as they are taken and is complete after the last.

    A line that gives no event is counted there with its number and reason, and the rest is still read.
    Memory is bounded by the size of a batch, whatever the length of the file.
    """

    def __init__(self, source: Source, *, progress: Progress | None = None, batch_rows: int = 65536) -> None:
        if batch_rows < 1:
            raise ValueError("batch_rows must be at least 1")
        self.report = ImportReport()
        self._rows = RowBuilder(self.report)
        self._batches = self._read(source, progress, batch_rows)

    def __iter__(self) -> TraceReader:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def _read(self, source: Source, progress: Progress | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        report, rows = self.report, self._rows
        with opened(source) as (stream, size):
            for lines in read_lines(stream, size, report, progress):
                for line in lines:
                    report.lines += 1
                    self._line(report.lines, line)
                    if rows.rows >= batch_rows or rows.weight > BATCH_BYTES:
                        yield from self._take()
        if report.stream_errors:
            report.lose(None, None)
        yield from self._take()

    def _take(self) -> Iterator[pa.RecordBatch]:
        batch = self._rows.take()
        if batch.num_rows:
            yield batch

    def _line(self, number: int, line: bytes) -> None:
        report = self.report
        event = None
        try:
            event = orjson.loads(line)
            if type(line) is Overlong:
                raise Rejected(f"longer than {MAX_LINE} bytes")
            if type(event) is not dict:
                raise Rejected("not an object")
            self._rows.add(number, line, event)
            report.events += 1
        except orjson.JSONDecodeError as error:
            self._not_json(number, line, error)
        except Rejected as rejected:
            report.reject(number, rejected.reason)
            said = event if type(event) is dict else {}
            self._lost(said.get("source"), said.get("seq"))

    def _not_json(self, number: int, line: bytes, error: orjson.JSONDecodeError) -> None:
        if number == 1 and line.startswith(_BOM):
            self._line(number, line[len(_BOM) :])
            return
        if not line.strip():
            self.report.blank += 1
            return
        if type(line) is Overlong:
            self.report.reject(number, f"longer than {MAX_LINE} bytes")
        elif not _is_utf8(line):
            self.report.reject(number, "not valid UTF-8")
        elif "depth" in error.msg or "ecursion" in error.msg:
            self.report.reject(number, "nested too deeply")
        else:
            self.report.reject(number, "not JSON", f"{error.msg} at column {error.colno}")
        seqs, sources = _SEQ.findall(line), _SOURCE.findall(line)
        source = sources[0].decode("utf-8", "replace") if len(sources) == 1 else None
        self._lost(source, int(seqs[0]) if len(seqs) == 1 else None)

    def _lost(self, source: object, seq: object) -> None:
        """What a rejected line said is lost, as by a gap in the telemetry: remember where it was."""
        number = seq if type(seq) is int and 0 <= seq < 2**63 else None
        self.report.lose(source if type(source) is str else None, number)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_jsonl(source: Source, *, progress: Progress | None = None, batch_rows: int = 65536) -> TraceReader:
    """Read a trace from a path, from `-` (standard input) or from a binary stream.

    Plain, gzip or zstd is told from the content.
    `progress` is called with (raw bytes read, raw bytes in total or None). Raises TraceError, while batches
    are taken, where the file cannot be opened or read.
    """
    return TraceReader(source, progress=progress, batch_rows=batch_rows)


def load_trace(source: Source, *, progress: Progress | None = None) -> tuple[pa.Table, ImportReport]:
    """A whole trace in memory. Raises TraceError where it names more than `MAX_IN_MEMORY` pages in all."""
    reader = read_jsonl(source, progress=progress)
    batches, pages = [], 0
    for batch in reader:
        batches.append(batch)
        pages += sum(len(c.values) for c in batch.columns if pa.types.is_list(c.type))
        if pages > MAX_IN_MEMORY:
            raise TraceError(
                f"the trace names more than {MAX_IN_MEMORY} pages, too many to hold in memory",
                "Import it into a store and audit that.",
            )
    return pa.Table.from_batches(batches, EVENT_SCHEMA), reader.report
