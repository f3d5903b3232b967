"""A log that has grown since it was imported: how much of it is in the store already.

A file that was imported is known by its bytes. Where a file begins with exactly those of an earlier import, and goes
on, only what follows is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvwitness.audit.store import Store
from kvwitness.audit.trace.stream import GZIP, ZSTD

_CHUNK = 1 << 20


def lines_taken(store: Store, source: str | Path) -> int:
    """How many lines at the beginning of a file an earlier import took; 0 where it is new, or compressed."""
    path = Path(source)
    if not path.is_file():
        return 0
    size = path.stat().st_size
    known = {
        record.report["bytes_read"]: record
        for record in store.imports()
        if record.report and 0 < record.report.get("bytes_read", 0) < size
    }
    if not known:
        return 0
    taken = 0
    with path.open("rb") as file:
        if file.read(4).startswith((GZIP, ZSTD)):
            return 0
        file.seek(0)
        digest, at = hashlib.sha256(), 0
        for length in sorted(known):
            while at < length:
                chunk = file.read(min(_CHUNK, length - at))
                digest.update(chunk)
                at += len(chunk)
            record = known[length]
            if digest.hexdigest() == record.sha256:
                taken = record.report["lines"] - _unfinished(record.report)
    return taken


def _unfinished(report: Mapping[str, Any]) -> int:
    """1 where the last line could not be read, as when it had been written only in part."""
    bad = report.get("bad")
    last = bad[-1]["line"] if isinstance(bad, list) and bad else None
    return int(last == report["lines"])
