"""A log that has grown since it was imported: how much of it is in the store already.

A file that was imported is known by its bytes. Where a file begins with exactly those of an earlier import, and goes
on, only what follows is new. A log that was packed when it was rotated is known by its bytes as they were before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvwitness.audit.store import Store
from kvwitness.audit.trace import ImportReport
from kvwitness.audit.trace.stream import opened, unpacked
from kvwitness.collectors.logs.tables import OPEN_TO_THE_END


def lines_taken(store: Store, source: str | Path) -> int:
    """How many lines at the beginning of a file an earlier import took; 0 where it is new."""
    path = Path(source)
    if not path.is_file():
        return 0
    known: dict[int, dict[str, Mapping[str, Any]]] = {}
    for record in store.imports():
        if record.report and record.report.get("bytes_read"):
            known.setdefault(record.report["bytes_read"], {})[record.sha256] = record.report
    if not known:
        return 0
    taken, digest, at, lengths = 0, hashlib.sha256(), 0, sorted(known, reverse=True)
    with opened(path) as (stream, size):
        for chunk in unpacked(stream, size, ImportReport()):
            begin = 0
            while lengths and lengths[-1] <= at + len(chunk):
                length = lengths.pop()
                digest.update(chunk[begin : length - at])
                begin = length - at
                report = known[length].get(digest.hexdigest())
                if report is not None:
                    taken = report["lines"] - _unfinished(report)
            if not lengths:
                break
            digest.update(chunk[begin:])
            at += len(chunk)
    return taken


def _unfinished(report: Mapping[str, Any]) -> int:
    """How many lines at the end could not be read, as when the last had been written only in part."""
    bad = report.get("bad")
    last = bad[-1] if isinstance(bad, list) and bad else {"line": None, "reason": ""}
    if last["reason"] == OPEN_TO_THE_END:
        return int(report["lines"] - last["line"] + 1)
    return int(last["line"] == report["lines"])
