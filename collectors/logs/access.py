"""Access logs of nginx (combined form) and Envoy (its default form): who asked a model, and which status went back.

They know no tokens. In JSON form, with fields of their own, they are read by `json_lines`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.report import ImportReport
from kvwitness.audit.trace.stream import Progress, Source
from kvwitness.collectors.heads import lines
from kvwitness.collectors.logs.calls import NOTHING, Call, Event, Given
from kvwitness.collectors.logs.fields import MODEL_PATHS
from kvwitness.collectors.logs.moments import moment
from kvwitness.collectors.logs.reading import LogReader

SOURCE = "gateway/access-log"
_NGINX = re.compile(
    r'^(?P<peer>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>\S+)[^"]*" (?P<status>\d{3}) '
    r"(?P<rest>.*)$"
)
_ENVOY = re.compile(
    r'^\[(?P<time>\d{4}-\d\d-\d\dT[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>\S+)[^"]*" (?P<status>\d+) (?P<flags>\S+) '
    r'(?:\S+ \S+ (?:"[^"]*" )?)?\d+ \d+ (?P<duration>\d+|-) \S+ "[^"]*" "[^"]*" "(?P<id>[^"]*)"'
)
_OTHER = re.compile(r'^(?:\S+ \S+ \S+ )?\[(?P<time>[^\]]{20,40})\] "[^"]*" \d+ ')
"""A line of either form that asks for nothing: bytes that are not HTTP, a connection that was closed, TCP."""
_NGINX_ID = re.compile(r'(?:request_id|rid|req)="?(?P<id>[\w-]{8,64})')
_NGINX_S = re.compile(r'\b(?:rt|request_time)="?(?P<s>\d+\.\d+)')


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is such a log."""
    text = [line.decode("utf-8", "replace") for line in lines(head, 5)]
    return bool(text) and all(_line(line) or _other(line) for line in text)


def _line(line: str) -> re.Match[str] | None:
    return _ENVOY.match(line) or _NGINX.match(line)


def _other(line: str) -> bool:
    found = _OTHER.match(line)
    return found is not None and moment(found["time"]) is not None


def read(path: Source, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> LogReader:
    """Batches of such a log."""
    return LogReader(path, _Parser(given), progress, skip, whole=True)


class _Parser:
    def __init__(self, given: Given) -> None:
        self._given, self._source = given, given.source or SOURCE

    def events(self, line: str, number: int, report: ImportReport) -> Iterable[Event] | None:
        found = _line(line)
        if found is None:
            if _other(line):
                return None
            raise Rejected("neither nginx's nor Envoy's form")
        parts = found.groupdict()
        path = parts["path"].split("?")[0].lower()
        if parts["method"] != "POST" or not path.endswith(MODEL_PATHS):
            return None
        time = moment(parts["time"])
        if time is None:
            raise Rejected("not a time")
        status = int(parts["status"])
        known = parts.get("id") or (m["id"] if (m := _NGINX_ID.search(parts.get("rest") or "")) else "")
        own = f"line-{hashlib.sha256(line.encode()).hexdigest()[:16]}-{number}"
        call = Call(known if known and known != "-" else own, status=status or None)
        if "duration" in parts:  # Envoy dates a line by the request's arrival, nginx by its end
            call.start = time.ns
            call.end = time.ns + (int(parts["duration"]) if parts["duration"].isdigit() else 0) * 1_000_000
        else:
            taken = float(m["s"]) if (m := _NGINX_S.search(parts["rest"])) else 0.0
            call.start, call.end = time.ns - int(taken * 1e9), time.ns
        user = parts.get("user")
        if user and user != "-":
            call.tenant, call.tenant_source = user, "log:user"
        return call.events(self._source, self._given)
