"""Bytes that stay: the only place where the store syncs, renames and locks.

The discipline is the same everywhere. A file is written under a name that no reader looks for, synced,
renamed to its final name, and then the directory is synced. After a crash or a power cut a final name
therefore either does not exist or holds the complete content; a record is acknowledged only after the last
sync.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_GATHER = 1 << 20
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def sync_fd(fd: int) -> None:
    """Wait until the device holds everything written to `fd`.

    macOS answers a plain fsync before the drive's own cache is written; there the full form is asked for.
    """
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        os.fsync(fd)


def sync_dir(path: Path) -> None:
    """Make the names in a directory durable (creations, renames, removals)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dir(path: Path) -> None:
    """Create a directory, durably, if it is not there."""
    if not path.is_dir():
        path.mkdir(exist_ok=True)
        sync_dir(path.parent)


def place(tmp: Path, final: Path) -> None:
    """Give a file that is written and synced its final name, durably, replacing what had that name."""
    os.replace(tmp, final)
    sync_dir(final.parent)


def write_atomic(final: Path, data: bytes, tmp_dir: Path) -> None:
    """Replace `final` by `data`: a reader sees the old bytes or all the new ones, after a power cut too."""
    tmp = tmp_dir / f"{final.name}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            _write_all(fd, data)
            sync_fd(fd)
        finally:
            os.close(fd)
        place(tmp, final)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise


def remove(path: Path) -> bool:
    """Unlink a file; say whether it was there."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _write_all(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class HashingFile(io.RawIOBase):
    """A new file that knows the SHA-256 of what has been written to it; written once, from front to back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._sha = hashlib.sha256()
        self._waiting = bytearray()
        self._discarded = False
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def writable(self) -> bool:
        """Always: this is a sink."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def write(self, data: Any) -> int:
        """Append all of `data` (never a part of it). Small pieces are gathered: Parquet comes in hundreds."""
        view = memoryview(data).cast("B")
        if not self._discarded:
            self._waiting += view
            self.size += len(view)
            if len(self._waiting) >= _GATHER:
                self._write_out()
        return len(view)

    def _write_out(self) -> None:
        _write_all(self._fd, self._waiting)
        self._sha.update(self._waiting)
        self._waiting = bytearray()

    def digest(self) -> str:
        """Hex SHA-256 of everything written."""
        self._write_out()
        return self._sha.hexdigest()

    def tail(self, length: int) -> bytes:
        """The last `length` bytes written."""
        self._write_out()
        return os.pread(self._fd, length, self.size - length)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes in place; the digest keeps describing the file as it was before."""
        self._write_out()
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError(errno.EIO, "Only a part was written")

    def sync(self) -> None:
        """Wait until the device holds the file's bytes."""
        self._write_out()
        sync_fd(self._fd)

    def discard(self) -> None:
        """Swallow everything that is written from now on: the file is going to be removed."""
        self._discarded = True

    def dispose(self) -> None:
        """Close the descriptor. (`close` is left to do nothing: the Parquet library closes its sink too
        early.)"""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileLock:
    """An advisory lock on a file, held by an open descriptor: the system frees it when the holder dies.

    A child process made by fork shares the descriptor and would share the lock; whoever holds one checks
    `mine`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._pid = -1

    @property
    def mine(self) -> bool:
        """Whether this very process took the lock and still has it."""
        return self._fd >= 0 and self._pid == os.getpid()

    def acquire(self, *, wait: bool) -> bool:
        """Take the lock; without `wait`, say False at once if another holds it.

        The file may be removed by its holder, so after locking it is checked that the name still means this
        file.
        """
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(fd)
                return False
            except BaseException:
                os.close(fd)
                raise
            if _same_file(fd, self.path):
                self._fd, self._pid = fd, os.getpid()
                return True
            os.close(fd)

    def release(self, *, unlink: bool = False) -> None:
        """Let go; with `unlink`, remove the lock's file first (only while holding it)."""
        if self._fd < 0:
            return
        if unlink and self.mine:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        self.acquire(wait=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
