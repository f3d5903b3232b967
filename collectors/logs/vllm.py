"""vLLM's log with `--enable-log-requests`: which requests came, with which limits on their output, and how they ended.

It does not say how long prompts are, unless it is an old version that lists their token ids, or a new one that logs
at DEBUG: those are counted, and dropped. Times have no year; the file's own date gives it: nothing in it is younger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.report import ImportReport, bump
from kvwitness.audit.trace.stream import Progress, Source
from kvwitness.collectors.heads import beginning
from kvwitness.collectors.logs.calls import NOTHING, Call, Event, Given
from kvwitness.collectors.logs.reading import LogReader

SOURCE = "vllm/0"
_STAMP = re.compile(
    r"\b(?:INFO|DEBUG|WARNING|ERROR) (?:(\d{4})-)?(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))? "
)
_RECEIVED = re.compile(r"Received request ([\w.:-]+): ")
_DETAILS = re.compile(r"\bRequest ([\w.:-]+) details: ")
_FINISHED = re.compile(r"Generated response ([\w.:-]+?)(?: \([^)]*\))?: ")
_MAX_TOKENS = re.compile(r"\bmax_tokens=(\d+)")
_LORA = re.compile(r"lora_name='([^']{1,200})'")
_IDS = re.compile(r"prompt_token_ids: \[([\d, ]*)\]")
_REASON = re.compile(r"finish_reason: '?(\w+)")
_CONTENT = re.compile(r"\b(prompt|output): ['\"]")


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is such a log."""
    text = beginning(head)
    if b"sglang" in text.lower():  # which loads parts of vLLM in some versions, and then speaks with its voice too
        return False
    return _STAMP.search(text.decode("utf-8", "replace")) is not None and (
        b"vllm" in text.lower() or b"Received request " in text or b"request_logger.py" in text
    )


def recognise_line(line: bytes) -> bool:
    """Whether one line, anywhere in a file, shows that it is such a log."""
    if b"Received request " not in line:
        return False
    text = line.decode("utf-8", "replace")
    return _STAMP.search(text) is not None and _RECEIVED.search(text) is not None


def read(path: Source, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> LogReader:
    """Batches of such a log."""
    return LogReader(path, _Parser(given, _written(path)), progress, skip, whole=True)


def _written(path: Source) -> datetime:
    """When the last line of it was."""
    if isinstance(path, str | Path) and Path(path).is_file():
        return datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    return datetime.now(UTC)


class _Parser:
    def __init__(self, given: Given, written: datetime) -> None:
        self._given, self._source = given, given.source or SOURCE
        self._until = written + timedelta(days=1)  # a local time may be ahead of UTC
        self._details: tuple[str, int] | None = None
        """Id and prompt length by a line of details, which stands before that of the request."""

    def events(self, line: str, number: int, report: ImportReport) -> Iterable[Event] | None:
        received, finished = _RECEIVED.search(line), _FINISHED.search(line)
        if received is None and finished is None and (details := _DETAILS.search(line)):
            self._detailed(details[1], line, report)
            return None
        if received is None and finished is None:
            return None
        for found in _CONTENT.finditer(line):
            bump(report.dropped_content, found[1])
        report.note_once(number, "times without a zone are taken for UTC")
        time = self._time(line)
        if received is not None:
            call = Call(received[1], start=time)
            call.received_tokens = _length(line, report)
            if self._details is not None and self._details[0] == received[1]:
                call.received_tokens = self._details[1]
            call.max_new_tokens = int(most[1]) if (most := _MAX_TOKENS.search(line)) else None
            call.adapter = lora[1] if (lora := _LORA.search(line)) else None
            return call.events(self._source, self._given)
        assert finished is not None
        reason = told[1] if (told := _REASON.search(line)) else None
        end = Call(finished[1], end=time, finish_reason=reason, answered_by=self._source.split("/")[0])
        end.status = None if reason in ("abort", "None", None) else 200
        return end.events(self._source, self._given)

    def _detailed(self, request: str, line: str, report: ImportReport) -> None:
        for found in _CONTENT.finditer(line):
            bump(report.dropped_content, found[1])
        length = _length(line, report)
        self._details = None if length is None else (request, length)

    def _time(self, line: str) -> int:
        stamp = _STAMP.search(line)
        if stamp is None:
            raise Rejected("no time in it")
        year, *rest = stamp.groups()
        month, day, hour, minute, second = (int(part) for part in rest[:5])
        try:
            when = datetime(int(year or self._until.year), month, day, hour, minute, second, tzinfo=UTC)
            if year is None and when > self._until:
                when = when.replace(year=when.year - 1)
        except ValueError:
            raise Rejected("not a time") from None
        micro = int((rest[5] or "0").ljust(6, "0"))
        return (int(when.timestamp()) * 1_000_000 + micro) * 1_000


def _length(line: str, report: ImportReport) -> int | None:
    """How many token ids a line lists; they themselves are not kept."""
    ids = _IDS.search(line)
    if ids is None:
        return None
    bump(report.dropped_content, "prompt_token_ids")
    return len(ids[1].split(",")) if ids[1].strip() else 0
