"""Reading a log line by line into batches of events, with an account of every line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from kvwitness.audit.trace import ImportReport
from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.rows import RowBuilder
from kvwitness.audit.trace.stream import MAX_LINE, Overlong, Progress, Source, opened, read_lines
from kvwitness.collectors.logs.calls import Event

BATCH_ROWS = 65_536
BACK_NS = 60_000_000_000
"""A clock that goes back by more than this within a log is told."""
UNENDED = "it has no line break yet, and is taken when the file has grown"
_BOM = "\ufeff"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Parser(Protocol):
    """What a kind of log has to offer."""

    def events(self, line: str, number: int, report: ImportReport) -> Iterable[Event] | None:
        """The events of a line; None where it says nothing about requests. Raises `Rejected` for one that is broken.

        What it drops from the line because it is content, it counts in `report.dropped_content`.
        """


class Clock:
    """Tells where the times of a log go back."""

    def __init__(self) -> None:
        self._latest: int | None = None

    def watch(self, number: int, time: int, report: ImportReport) -> None:
        """Note it if the time of this line lies well before that of the last one."""
        if self._latest is not None and time < self._latest - BACK_NS:
            back = (self._latest - time) / 1e9
            report.note(number, f"the clock went back by {back:,.0f} s: a set clock, or a file put together wrongly")
        self._latest = time


class LogReader(Iterator[pa.RecordBatch]):
    """Batches of a log; `report` is filled as they are taken and is complete after the last."""

    def __init__(
        self,
        source: Source,
        parser: Parser,
        progress: Progress | None = None,
        skip: int = 0,
        *,
        heading: bool = False,
        whole: bool = False,
    ) -> None:
        """`heading`: the first line says what the fields are called, and is read even where lines are skipped.

        `whole`: a part of a line can look like a line, so a last one without a line break is left for the next import.
        """
        self.report = ImportReport()
        self._rows = RowBuilder(self.report)
        self._parser = parser
        self._clock, self._heading, self._whole = Clock(), heading, whole
        self._batches = self._read(source, progress, skip)

    def __iter__(self) -> LogReader:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def _read(self, source: Source, progress: Progress | None, skip: int) -> Iterator[pa.RecordBatch]:
        """`skip` lines are in the store already, from an import of the file when it was shorter."""
        report, rows = self.report, self._rows
        with opened(source) as (stream, size):
            for lines in read_lines(stream, size, report, progress):
                for line in lines:
                    report.lines += 1
                    if report.lines <= skip and not self._heading:
                        report.other += 1
                        continue
                    self._line(report.lines, line)
                    if rows.rows >= BATCH_ROWS:
                        yield rows.take()
        self._ended()
        if report.stream_errors:
            report.lose(None, None)
        if rows.rows:
            yield rows.take()

    def _unread(self, number: int, raw: bytes) -> None:
        """A line is lost that says nothing in any encoding."""

    def _ended(self) -> None:
        """Account for what waited for a line that did not come."""

    def _line(self, number: int, raw: bytes) -> None:
        report = self.report
        try:
            text = _decoded(raw, number)
        except Rejected as rejected:
            report.reject(number, rejected.reason)
            report.lose(None, None)
            self._unread(number, raw)
            return
        try:
            if not text.strip():
                report.blank += 1
                return
            self._heading = False
            if report.unended and self._whole:
                raise Rejected(UNENDED)
            events = self._parser.events(text, number, report)
            if events is None:
                report.other += 1
                return
            self._take(number, list(events), len(raw))
        except Rejected as rejected:
            report.reject(number, rejected.reason)
            report.lose(None, None)

    def _take(self, number: int, events: list[Event], size: int) -> None:
        """Add the events of a line; all or none."""
        if not events:
            raise Rejected("no time in it")
        before = self._rows.rows
        try:
            for kind, time, fields in events:
                self._rows.add_parsed(number, kind, time, fields, size)
        except Rejected:
            self._rows.cut(before)
            raise
        self.report.events += len(events)
        self.report.more_events += len(events) - 1
        self._clock.watch(number, max(time for _, time, _ in events), self.report)


def _decoded(raw: bytes, number: int) -> str:
    if type(raw) is Overlong:
        raise Rejected(f"longer than {MAX_LINE} bytes")
    if number == 1 and raw.startswith(_UTF16):
        raise Rejected("UTF-16; convert the file to UTF-8 first")
    if b"\0" in raw:
        if not raw.strip(b"\0 \t\r"):
            raise Rejected("NUL bytes alone: the file was truncated while it was written")
        raw = raw.strip(b"\0")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Rejected("not valid UTF-8") from None
    return text.removeprefix(_BOM) if number == 1 else text
