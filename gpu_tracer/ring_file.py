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
    """An open ring file. The lock on `fd` is held until the process ends, however it ends, or the file is closed."""

    path: Path
    fd: int
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
    try:
        # A flock goes with the open file: it ends when the last process that has it open is gone.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(fd, 0, sizes.total)
        mapped = mmap.mmap(fd, sizes.total, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        _describe(mapped, ring, named.encode(), sizes)
        os.rename(unfinished, path)
    except BaseException:
        os.close(fd)
        unfinished.unlink(missing_ok=True)
        raise
    return RingFile(path, fd, mapped, named)


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
