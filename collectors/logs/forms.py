"""Access logs of a form of one's own, which a mapping file states as the gateway's configuration does.

    form = '$time_iso8601 $host $request_method "$uri" $status $request_time $request_id'        # log_format of nginx
    form = '[%START_TIME%] %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% %DURATION%'               # text_format of Envoy

Each variable is a field under its own name, in lower case; of Envoy's headers that is the name of the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.report import ImportReport
from kvwitness.audit.trace.stream import Progress, Source
from kvwitness.collectors.logs.calls import NOTHING, Event, Given
from kvwitness.collectors.logs.json_lines import events_of
from kvwitness.collectors.logs.reading import LogReader

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))|%([A-Z0-9_]+)(?:\(([^)]*)\))?(?::\d+)?%")
_WORD = r"(?:[^ ]|(?<=,) )*"
"""What stands before a blank; nginx lists several upstreams as `0.1, 0.2`."""


@dataclass(frozen=True)
class Form:
    """How a line is taken apart."""

    pattern: re.Pattern[str]
    names: tuple[str, ...]
    """What its groups are called."""

    @classmethod
    def of(cls, text: str) -> Form:
        """From the text of a configuration. Raises KvwitnessError where lines of it could not be taken apart."""
        parts: list[str] = []
        names: list[str] = []
        at = 0
        for found in _VARIABLE.finditer(text):
            if names and found.start() == at:
                raise KvwitnessError(f"form: nothing stands between ${names[-1]} and {found[0]}.")
            parts.append(re.escape(text[at : found.start()]))
            at = found.end()
            follows = text[at : at + 1]
            parts.append("(.*)" if not follows else f"({_WORD})" if follows == " " else f"([^{re.escape(follows)}]*)")
            names.append(_name(found))
        if not names:
            raise KvwitnessError(
                "form: there is no variable in it.",
                "Write it as in nginx's log_format ($status) or Envoy's (%DURATION%).",
            )
        return cls(re.compile("".join(parts) + re.escape(text[at:])), tuple(names))


def _name(found: re.Match[str]) -> str:
    if found[4] is None:
        return (found[1] or found[2] or found[3]).lower()
    # the last of several headers is the one that is always there; times and codes have a format in there instead
    return found[4].split("?")[-1].lstrip(":").lower() if found[3] in ("REQ", "RESP") else found[3].lower()


def read(path: Source, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> LogReader:
    """Batches of a log whose form is given."""
    return LogReader(path, _Parser(given), progress, skip, whole=True)


class _Parser:
    def __init__(self, given: Given) -> None:
        self._given, self._form = given, Form.of(given.form or "")

    def events(self, line: str, number: int, report: ImportReport) -> Iterable[Event] | None:
        found = self._form.pattern.fullmatch(line.rstrip("\r"))
        if found is None:
            raise Rejected("not of the form that the mapping file states")
        document = dict(zip(self._form.names, found.groups(), strict=True))
        return events_of(document, self._given, report, number, line.encode())
