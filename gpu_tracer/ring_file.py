"""Makes the file of a ring: private, whole before anybody sees it, and known to be in use while its writer lives."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from kvwitness.audit.trace.ring import (
    DESCRIPTION_AT,
    MAGIC,
    MAX_DESCRIPTION,
    MAX_SOURCE,
    SOURCE_AT,
    SUFFIX,
    UNFINISHED,
    VERSION,
    Description,
    Sizes,
    Word,
)


@dataclass(frozen=True)
class RingFile:
    """An open ring file."""

    path: Path
    lock: int
    """A file descriptor that holds a lock until it is closed, or the process ends, however it does."""
    map: mmap.mmap
    source: str
    """The name that was asked for, `/`, and eight hex digits of the ring's id: no two rings number one source."""


def create(directory: Path, source: str, sizes: Sizes) -> RingFile:
    """A new ring in `directory`, which is made (0700) where it is missing.

    All its bytes are claimed now, so that no later write can fail for want of space. Raises OSError where the file
    cannot be made, ValueError where the name of the source is empty or too long.
    """
    ring = secrets.randbits(64)
    named = f"{source}/{ring & 0xFFFFFFFF:08x}"
    if not source or len(named.encode()) > MAX_SOURCE:
        raise ValueError("the name of a source is empty or too long")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{os.getpid()}-{ring:016x}{SUFFIX}"
    unfinished = path.with_suffix(UNFINISHED)
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    lock = None
    try:
        os.posix_fallocate(fd, 0, sizes.total)
        mapped = mmap.mmap(fd, sizes.total, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        # A flock goes with one opening of the file, so it is not that of the map, which keeps its own for good.
        lock = os.open(unfinished, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _describe(mapped, ring, named.encode(), sizes)
        os.rename(unfinished, path)
    except BaseException:
        if lock is not None:
            os.close(lock)
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return RingFile(path, lock, mapped, named)


def _describe(mapped: mmap.mmap, ring: int, source: bytes, sizes: Sizes) -> None:
    description = Description.own().to_json()
    if len(description) > MAX_DESCRIPTION:
        raise ValueError("the vocabulary does not fit the header")
    mapped[SOURCE_AT : SOURCE_AT + len(source)] = source
    mapped[DESCRIPTION_AT : DESCRIPTION_AT + len(description)] = description
    facts = {
        Word.MAGIC: MAGIC,
        Word.VERSION: VERSION,
        Word.RING: ring,
        Word.PID: os.getpid(),
        Word.SLOTS: sizes.slots,
        Word.STRINGS: sizes.strings,
        Word.ARENA: sizes.arena,
        Word.CREATED_NS: time.time_ns(),
        Word.MONOTONIC_NS: time.monotonic_ns(),
        Word.SOURCE_BYTES: len(source),
        Word.DESCRIPTION_BYTES: len(description),
    }
    with memoryview(mapped) as view, view[:512].cast("Q") as words:
        for word, value in facts.items():
            words[word] = value
