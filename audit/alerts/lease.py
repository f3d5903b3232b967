"""One active instance: the others say who it is and leave."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvwitness.audit.alerts.ledger_file import directory
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store
from kvwitness.audit.store.durable import FileLock


class Busy(KvwitnessError):
    """Another instance is at work on this store."""


@contextmanager
def lease(store: Store, now_ns: int) -> Iterator[None]:
    """Held while a check or a watch is at work. The system frees it when the holder dies, however it dies.

    Raises `Busy` when another holds it.
    """
    path = directory(store)
    path.mkdir(exist_ok=True)
    lock, holder = FileLock(path / "lease"), path / "holder.json"
    if not lock.acquire(wait=False):
        raise Busy(f"Another instance watches the store {store.path}{_who(holder)}.")
    try:
        holder.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since_ns": now_ns}))
        yield
    finally:
        lock.release()


def _who(holder: Path) -> str:
    try:
        known = json.loads(holder.read_text())
        return f" (process {known['pid']} on {known['host']})"
    except (OSError, ValueError, KeyError):
        return ""
