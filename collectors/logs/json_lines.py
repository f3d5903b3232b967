"""JSON Lines of requests, whoever wrote them: OpenAI-style client logs and batch outputs, LiteLLM, nginx and Envoy.

What the fields are called stands in `fields`; a mapping file says it for logs that call them otherwise.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import orjson

from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.report import ImportReport
from kvwitness.audit.trace.stream import Progress, Source
from kvwitness.collectors.heads import lines
from kvwitness.collectors.logs.calls import NOTHING, Event, Given
from kvwitness.collectors.logs.fields import MODEL_PATHS, call_of, said
from kvwitness.collectors.logs.reading import LogReader

CLIENT, GATEWAY = "client/log", "gateway/log"
_REQUEST = re.compile(r"([A-Z]+) (\S+)(?: HTTP/[\d.]+)?$")
_TELLING = ("prompt_tokens", "received_tokens", "completion_tokens", "status")


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is such a log: its first line is an object that tells of an answer, and when."""
    first = lines(head, 1)
    if not first:
        return False
    try:
        document = orjson.loads(first[0])
    except orjson.JSONDecodeError:
        return False
    if not isinstance(document, dict) or "event" in document:
        return False
    tells = any(said(document, what, NOTHING) is not None for what in _TELLING)
    return tells and any(said(document, what, NOTHING) is not None for what in ("start", "end"))


def read(path: Source, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> LogReader:
    """Batches of such a log."""
    return LogReader(path, _Parser(given), progress, skip)


class _Parser:
    def __init__(self, given: Given) -> None:
        self._given = given

    def events(self, line: str, number: int, report: ImportReport) -> Iterable[Event] | None:
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise Rejected("not JSON") from None
        if not isinstance(document, dict):
            raise Rejected("not an object")
        return events_of(document, self._given, report, number, line.encode())


def events_of(
    document: dict[str, Any], given: Given, report: ImportReport, number: int, raw: bytes
) -> list[Event] | None:
    """The events of one record; None where it is not about a model."""
    path, method = said(document, "path", given), said(document, "method", given)
    if path is None and isinstance(asked := document.get("request"), str) and (line := _REQUEST.match(asked)):
        method, path = line.groups()  # as nginx writes it
    if path is not None and isinstance(method, str) and method.upper() != "POST":
        return None
    if isinstance(path, str) and not path.split("?")[0].lower().endswith(MODEL_PATHS):
        return None
    own = f"line-{hashlib.sha256(raw).hexdigest()[:16]}-{number}"
    call = call_of(document, own, given, report, number)
    source = said(document, "source", given) if "source" in given.columns else given.source
    return call.events(str(source or (GATEWAY if path is not None else CLIENT)), given)
