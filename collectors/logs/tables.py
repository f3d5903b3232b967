"""CSV and Parquet files of requests. Columns with the usual names are understood; a mapping file names the others."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from kvwitness.audit.trace import ImportReport, TraceError
from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.rows import RowBuilder
from kvwitness.audit.trace.stream import MAX_LINE, Progress, Source
from kvwitness.collectors.heads import lines
from kvwitness.collectors.logs.calls import NOTHING, Event, Given
from kvwitness.collectors.logs.fields import ALIASES
from kvwitness.collectors.logs.json_lines import events_of
from kvwitness.collectors.logs.reading import BATCH_ROWS, Clock, LogReader

PARQUET = b"PAR1"
_SEPARATORS = ",;\t|"
_CHUNK = 1 << 20
_OPEN = "unexpected end of data"
"""What the csv module says where a quote is not closed."""
OPEN_TO_THE_END = "not CSV: a quote of this line is not closed in the rest of the file"
csv.field_size_limit(MAX_LINE)  # a prompt may stand in a field


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is Parquet, or CSV with a line of names among which are usual ones."""
    if head.startswith(PARQUET):
        return True
    first = lines(head, 1)
    if not first or first[0].lstrip().startswith((b"{", b"[")):
        return False
    names = set(_names(first[0].decode("utf-8", "replace")))
    timed = names & {*ALIASES["start"], *ALIASES["end"]}
    return bool(timed) and bool(names & {*ALIASES["prompt_tokens"], *ALIASES["received_tokens"], *ALIASES["status"]})


def read(path: Source, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> LogReader | Parquet:
    """Batches of such a file."""
    if isinstance(path, str | Path) and Path(path).is_file():
        with open(path, "rb") as file:
            if file.read(4) == PARQUET:
                return Parquet(Path(path), given, progress)
    return _CsvReader(path, _Csv(given), progress, skip, heading=True)


def _separator(header: str) -> str:
    return max(_SEPARATORS, key=header.count)


def _names(header: str) -> list[str]:
    return [name.strip() for name in next(csv.reader(io.StringIO(header), delimiter=_separator(header)), [])]


class _CsvReader(LogReader):
    _parser: _Csv

    def _unread(self, number: int, raw: bytes) -> None:
        self._parser.pass_over(number, raw.count(b'"'))

    def _ended(self) -> None:
        if self.report.unended:
            self.report.note(
                self.report.lines, "the last line has no line break; if the file was cut, its last field is"
            )
        held = self._parser.held
        if held:  # its lines were taken for parts of a record
            self.report.other -= 1
            self.report.reject(held[0][0], OPEN_TO_THE_END)
            self.report.lose(None, None)


class _Csv:
    """Lines of CSV, after the line of names. A field in quotes may hold line breaks.

    While a quote is open, what comes is the field's, whatever it looks like: a prompt that is kept in the file must
    not pass for records of its own.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self._names: list[str] = []
        self._separator = ","
        self.held: list[tuple[int, str]] = []
        """Lines of a record whose end has not come yet."""
        self._quotes = self._size = 0

    def events(self, line: str, number: int, report: ImportReport) -> Iterable[Event] | None:
        if not self._names:
            self._names, self._separator = _names(line), _separator(line)
            return None
        line = line.rstrip("\r")
        self._quotes += line.count('"')
        if self.held and self._quotes % 2:
            self._hold(number, line)
            return None
        whole = "\n".join([text for _, text in self.held] + [line])
        try:
            [values] = list(csv.reader(io.StringIO(whole, newline=""), delimiter=self._separator, strict=True))
        except (csv.Error, ValueError) as error:
            if self._quotes % 2 and str(error) == _OPEN:
                self._hold(number, line)
                return None
            self._forget()
            raise Rejected("not CSV: a quote stands where it must not") from None
        self._forget()
        line = whole
        if len(values) != len(self._names):
            raise Rejected("not as many fields as there are names")
        document = {name: value for name, value in zip(self._names, values, strict=True) if value != ""}
        return events_of(document, self._given, report, number, line.encode())

    def pass_over(self, number: int, quotes: int) -> None:
        """A line could not be read at all: it may have opened a quote, or have closed it."""
        self._quotes += quotes
        if self._quotes % 2 == 0:
            self._forget()
        elif not self.held:
            self._hold(number, "")

    def _hold(self, number: int, line: str) -> None:
        self._size += len(line)
        if self._size > MAX_LINE:
            self._forget()
            raise Rejected(f"a record of more than {MAX_LINE} bytes")
        self.held.append((number, line))

    def _forget(self) -> None:
        self.held, self._quotes, self._size = [], 0, 0


class Parquet(Iterator[pa.RecordBatch]):
    """Batches of a Parquet file; `report` counts rows as lines, from 1."""

    def __init__(self, path: Path, given: Given, progress: Progress | None) -> None:
        self.report = ImportReport()
        self._rows = RowBuilder(self.report)
        self._clock = Clock()
        self._batches = self._read(path, given, progress)

    def __iter__(self) -> Parquet:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def _read(self, path: Path, given: Given, progress: Progress | None) -> Iterator[pa.RecordBatch]:
        report, size = self.report, path.stat().st_size
        try:
            file = pq.ParquetFile(path)
            for batch in file.iter_batches(4096):
                for document in _in_us(batch).to_pylist():
                    report.lines += 1
                    self._row({k: v for k, v in document.items() if v is not None}, given)
                if progress is not None:
                    progress(size * report.lines // max(1, file.metadata.num_rows), size)
                if self._rows.rows >= BATCH_ROWS:
                    yield self._rows.take()
        except (pa.ArrowException, OSError) as error:
            raise TraceError(f"{path} cannot be read as Parquet: {error}") from None
        if self._rows.rows:
            yield self._rows.take()
        report.sha256, report.bytes_read = _sha256(path), size

    def _row(self, document: dict[str, object], given: Given) -> None:
        report, before = self.report, self._rows.rows
        try:
            raw = orjson.dumps(document, default=str, option=orjson.OPT_SORT_KEYS)
            events = events_of(document, given, report, report.lines, raw)
            if events is None:
                report.other += 1
                return
            if not events:
                raise Rejected("no time in it")
            for kind, time, fields in events:
                self._rows.add_parsed(report.lines, kind, time, fields, 200)
            self._clock.watch(report.lines, max(time for _, time, _ in events), report)
            report.events += len(events)
            report.more_events += len(events) - 1
        except Rejected as rejected:
            self._rows.cut(before)
            report.reject(report.lines, rejected.reason)
            report.lose(None, None)


def _in_us(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as Python has them: it knows no nanoseconds, and not every machine has the names of all zones."""
    fields = [
        field.with_type(pa.timestamp("us", "UTC" if field.type.tz else None))
        if pa.types.is_timestamp(field.type)
        else field
        for field in batch.schema
    ]
    columns = [column.cast(field.type, safe=False) for column, field in zip(batch.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
