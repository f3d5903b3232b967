"""What can go wrong with a store, told so that a person knows what to do next."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvwitness.audit.errors import KvwitnessError


class StoreError(KvwitnessError):
    """Any failure of the store that is told to a person."""


class NoStore(StoreError):
    """There is no store at this path, or something else is there."""


class NewerStore(StoreError):
    """The store, or one of its segments, was written by a newer version of the program."""


class OlderStore(StoreError):
    """The store has an older schema and has to be migrated first."""


class MovedStore(StoreError):
    """`store.duckdb` still names the files of the place where the store was published."""


class StoreBusy(StoreError):
    """Another process is compacting, migrating or applying retention."""


class DiskFull(StoreError):
    """No space is left for what had to be written. What was acknowledged before is safe."""


class ReadOnlyDisk(StoreError):
    """The store cannot be written: read-only file system or missing permission."""


class DiskFailure(StoreError):
    """The device or file system reported an error; what was being written is not acknowledged."""


class CorruptSegment(StoreError):
    """A segment's bytes differ from its checksum, or it cannot be decoded."""


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def storage_error(exc: OSError, doing: str, path: Path | str) -> StoreError:
    """Turn an operating-system error into one that says what was being done, where, and what to do.

    `doing` completes the sentence "... while <doing> <path>".
    """
    reason = exc.strerror or str(exc)
    if exc.errno in _FULL:
        return DiskFull(
            f"The disk is full: {reason} while {doing} {path}.",
            "Records that were acknowledged before are safe. Free space, or raise the quota or file size "
            "limit, then try again: `kvwitness store compact` removes files that are no longer needed, and "
            "`kvwitness store retain` removes old records.",
        )
    if exc.errno in _READ_ONLY:
        return ReadOnlyDisk(
            f"The store cannot be written: {reason} while {doing} {path}.",
            "Reading still works. Check that the file system is mounted read-write and that this user may write there.",
        )
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError(
            f"Too many open files while {doing} {path}.",
            "Raise the limit (`ulimit -n`), or run `kvwitness store compact` so that there are fewer segments.",
        )
    return DiskFailure(
        f"The disk reported an error: {reason} while {doing} {path}.",
        "What was being written is not acknowledged; what was acknowledged before is not touched. Check the "
        "device and the system log, then run `kvwitness store verify`.",
    )


@contextmanager
def explained(doing: str, path: Path | str) -> Iterator[None]:
    """Inside this block an `OSError` becomes a `StoreError` (see `storage_error`)."""
    try:
        yield
    except OSError as exc:
        raise storage_error(exc, doing, path) from exc
