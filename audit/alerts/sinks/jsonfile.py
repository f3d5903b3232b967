"""A file of JSON Lines: one notice per line, on disk before it counts as delivered."""

from __future__ import annotations

from pathlib import Path

import orjson

from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._lines import append
from kvwitness.audit.alerts.sinks._wording import document
from kvwitness.audit.alerts.sinks.model import SinkKind


class JsonFile:
    """Appends to a file, which may be moved away at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def deliver(self, notice: Notice) -> None:
        """Append one line."""
        append(self._path, orjson.dumps(document(notice)))


def make(section: Section) -> JsonFile:
    """Keys: `path`."""
    return JsonFile(section.path("path"))


SINK = SinkKind("jsonfile", "a file of JSON Lines", make)
