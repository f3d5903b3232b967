"""SGLang's log: requests (`--log-requests`, as text or as JSON), refusals, and what its own checks found.

Each line may begin with a `[2026-08-27 12:00:00 TP0]` of its own. At levels 0 and 1 of the request log there is no text
in it; what there is at higher levels is dropped here. What checks of pages found is taken by `sglang_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.report import ImportReport
from kvwitness.audit.trace.stream import Progress, Source
from kvwitness.collectors.heads import beginning
from kvwitness.collectors.logs import sglang_text
from kvwitness.collectors.logs.calls import NOTHING, Call, Event, Given
from kvwitness.collectors.logs.fields import count_content, look
from kvwitness.collectors.logs.moments import moment
from kvwitness.collectors.logs.reading import LogReader
from kvwitness.collectors.logs.sglang_checks import SIGNS, finding

_STARTING = re.compile(
    rb"\bserver_args=(?:ServerArgs\(|\{)"  # the first thing that it says
    rb"|\bsglang[./](?:srt\b|launch_server\b)"
    rb"|The server is fired up and ready to roll!"
)
_PREFIX = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?: ([^\]]*))?\]\s*")
_TOO_LONG = re.compile(r"Input length \((\d+) tokens\) exceeds the maximum allowed length \((\d+) tokens\)")
_RID = re.compile(r"rid='?([\w.:-]+)")
_RANK = re.compile(r"\bTP(\d+)")
_RECEIVED, _FINISHED = "request.received", "request.finished"
SOURCE = "sglang/0"
JOINED = "requests have the id of the other side of their hand-over, which the store has by the same room"
APART = "the store has both sides of a hand-over already, under two ids; import the decode server's log before all else"


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is such a log: of requests alone, or of all that a server says from its start."""
    return any(map(recognise_line, beginning(head).split(b"\n")))


def recognise_line(line: bytes) -> bool:
    """Whether one line, anywhere in a file, shows that it is such a log."""
    request = b'"rid"' in line and b'"event"' in line and b"request." in line
    return (
        request
        or sglang_text.recognise_line(line)
        or _STARTING.search(line) is not None
        or any(sign in line for sign in SIGNS)
    )


def read(path: Source, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> LogReader:
    """Batches of such a log."""
    return LogReader(path, _Parser(given), progress, skip)


class _Parser:
    def __init__(self, given: Given) -> None:
        self._given, self._source = given, given.source or SOURCE
        self._engine = self._source.split("/")[0]
        self._latest: int | None = None
        """Time of the last line that had one: the lines of a traceback have none."""
        self._joined: dict[str, str] = {}
        """Own id -> that under which the store has the other side of the hand-over."""

    def events(self, line: str, number: int, report: ImportReport) -> Iterable[Event] | None:
        prefix = _PREFIX.match(line)
        rest = line[prefix.end() :] if prefix else line
        time = moment(prefix[1]) if prefix else None
        if time is not None:
            self._latest = time.ns
        document = _json(rest) if rest.startswith("{") else sglang_text.document(rest)
        if document is None:
            return self._refusal(rest, time.ns if time else None) or self._check(rest, prefix, number, report)
        stated = moment(document.get("timestamp")) or time
        if stated is None:
            raise Rejected("timestamp: not a time")
        if stated.zone_assumed:
            report.note_once(number, "times without a zone are taken for UTC")
        count_content(document, report)
        events: list[Event] = []
        for one in _each(document):
            call = self._call(one, stated.ns)
            self._join(call, look(one, "obj.bootstrap_room"), stated.ns, number, report)
            events += call.events(self._source, self._given)
        return events

    def _join(self, call: Call, room: Any, time: int, number: int, report: ImportReport) -> None:
        """Give a request the id of its other side, where the store has that by the same room under another id."""
        own, partners = call.request, self._given.partners
        if own not in self._joined and partners is not None and isinstance(room, int):
            name = partners.name_of(own, room, time)
            if name is None:
                report.note_once(number, APART)
            elif name != own:
                report.note_once(number, JOINED)
                self._joined[own] = name
        if own in self._joined:
            call.request = self._joined[own]
            call.more |= {"own_request": own}

    def _call(self, document: dict[str, Any], time: int) -> Call:
        call = Call(request=document["rid"], tenant_source="log")
        asked, told = _object(document.get("obj")), _object(look(document, "out.meta_info"))
        if document["event"] == _RECEIVED:
            call.start = time
            call.received_tokens = _ids(asked.get("input_ids"))
            call.max_new_tokens = _count(look(asked, "sampling_params.max_new_tokens"))
            salt = asked.get("cache_salt") or asked.get("extra_key")
            call.salt = salt if isinstance(salt, str) else None
            adapter = asked.get("lora_path")
            call.adapter = adapter if isinstance(adapter, str) else None
            call.more = {"room": asked["bootstrap_room"]} if isinstance(asked.get("bootstrap_room"), int) else {}
            return call
        call.end, call.answered_by = time, self._engine
        call.prompt_tokens = _count(told.get("prompt_tokens"))
        call.cached_tokens = _count(told.get("cached_tokens"))
        call.completion_tokens = _count(told.get("completion_tokens"))
        finish = told.get("finish_reason")
        call.finish_reason = finish.get("type") if isinstance(finish, dict) else finish
        stated = finish.get("status_code") if isinstance(finish, dict) else None
        aborted = call.finish_reason == "abort"
        call.status = _count(stated) or (None if aborted else 200)
        return call

    def _refusal(self, text: str, time: int | None) -> list[Event] | None:
        found, rid = _TOO_LONG.search(text), _RID.search(text)
        if found is None or rid is None:
            return None
        if time is None:
            raise Rejected("a refusal without a time")
        about = {"source": self._source, "request": self._joined.get(rid[1], rid[1])}
        refused = {
            "reason": "input too long",
            "status": 400,
            "input_tokens": int(found[1]),
            "limit_tokens": int(found[2]),
        }
        received = about | {"prompt_tokens": int(found[1]), "prompt_tokens_source": "counted:refusal"}
        return [("request.received", time, received), ("request.rejected", time, about | refused)]

    def _check(self, text: str, prefix: re.Match[str] | None, number: int, report: ImportReport) -> list[Event] | None:
        fields = finding(text, number, report)
        if fields is None:
            return None
        if self._latest is None:
            raise Rejected("what a check found, without a time")
        rank = _RANK.search(prefix[2]) if prefix and prefix[2] else None
        if rank is not None:
            fields["rank"] = int(rank[1])
        report.note_once(number, "times without a zone are taken for UTC")
        return [("shadow.finding", self._latest, {"source": self._source, **fields})]


def _json(text: str) -> dict[str, Any] | None:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Rejected("not JSON") from None
    wanted = isinstance(document, dict) and document.get("event") in (_RECEIVED, _FINISHED)
    return document if wanted else None


def _each(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A batch is logged at once when it comes, with lists in place of values; other documents are one request."""
    rids = document.get("rid")
    if isinstance(rids, str):
        yield document
        return
    if not isinstance(rids, list) or not rids or not all(isinstance(rid, str) for rid in rids):
        raise Rejected("rid: not a string")
    asked = _object(document.get("obj"))
    for at, rid in enumerate(rids):
        own = {k: v[at] if isinstance(v, list) and len(v) == len(rids) else v for k, v in asked.items()}
        yield document | {"rid": rid, "obj": own}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _ids(value: Any) -> int | None:
    """How many token ids there are, where all are listed (level 2 cuts long lists); they themselves are not kept."""
    return len(value) if isinstance(value, list) and value and all(isinstance(one, int) for one in value) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
