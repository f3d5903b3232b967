"""Appending lines to a file so that they stay."""

from __future__ import annotations

import os
from pathlib import Path

from kvwitness.audit.alerts.sinks.model import Unreachable
from kvwitness.audit.store.durable import sync_fd


def append(path: Path, line: bytes) -> None:
    """Append a line, which holds no line end; when it returns, the line is on disk. The file may be moved away at any
    time. Raises `Unreachable`."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(fd).st_size
            # Whoever died in the middle of a line left it without its end.
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            os.write(fd, (b"\n" if torn else b"") + line + b"\n")
            sync_fd(fd)
        finally:
            os.close(fd)
    except OSError as exc:
        raise Unreachable(f"{path}: {exc.strerror}") from exc
