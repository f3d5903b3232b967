"""A disk that is full, read-only or failing: said clearly, and nothing acknowledged lost or doubled."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.store import DiskFailure, DiskFull, ReadOnlyDisk, Store, StoreError
from tests.store.support import assert_whole, events, seqs, sha, sql_count


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 6 MiB, where mounting is allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no small disk to be had: mounting a tmpfs needs root ({done.stderr.strip()})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def filled_up(place: Path) -> Iterator[None]:
    """Inside, not a byte is left on the disk."""
    ballast = place / "ballast"
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    yield
    ballast.unlink()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Inside, no file of this process may grow beyond `size`; the system refuses as it does on a full
    disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk(small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = Store.create(small_disk / "store")
    with store.writer("w") as writer:
        writer.append(events(10))
        writer.flush()
        writer.append(events(10, 10))
        with filled_up(small_disk):
            for _ in range(2):
                with pytest.raises(DiskFull, match=r"(?s)No space left.*ev-w-0000000002.*acknowledged before are safe"):
                    writer.flush()
            with pytest.raises(DiskFull):
                store.import_batches(iter([events(50, 100)]), sha256=sha("f"))
            with pytest.raises(DiskFull):
                store.publish()
            assert seqs(store) == list(range(10))
            assert writer.waiting == 10
        assert writer.flush() == "flushed/1/1/ev-w-0000000002.parquet"
    assert store.import_batches(iter([events(5, 20)]), sha256=sha("f")).added == 5
    assert seqs(store) == list(range(25))
    assert list((store.path / "tmp").iterdir()) == []
    assert_whole(store)
    assert capfd.readouterr().err == ""


def test_full_disk_during_compaction_and_results(small_disk: Path) -> None:
    store = Store.create(small_disk / "store")
    with store.writer("w") as writer:
        for first in range(0, 40, 10):
            writer.append(events(10, first))
            writer.flush()
    with filled_up(small_disk):
        with pytest.raises(DiskFull):
            store.compact(grace_s=0)
        with pytest.raises(DiskFull):
            store.retain(tenant="alice")
        with pytest.raises(DiskFull):
            store.put_result("run-1", {"findings": pl.DataFrame({"a": [1]})})
        assert seqs(store) == list(range(40))
    assert store.compact(grace_s=0).rows == 40
    store.put_result("run-1", {"findings": pl.DataFrame({"a": [1]})})
    assert_whole(store)


def test_a_quota_is_told_like_a_full_disk(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(3000, tenant="a"))
        with file_size_limit(8192), pytest.raises(DiskFull, match="File too large"):
            writer.flush()
        assert seqs(store) == []
        writer.flush()
    assert seqs(store) == list(range(3000))
    assert_whole(store)


def test_read_only_disk(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer("w") as writer:
        writer.append(events(10))
    target = tmp_path / "mounted"
    target.mkdir()
    done = subprocess.run(
        ["mount", "--bind", str(store.path), str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no read-only disk to be had: mounting needs root ({done.stderr.strip()})")
    try:
        Store.open(target).publish()
        subprocess.run(["mount", "-o", "remount,ro,bind", str(target)], check=True)
        mounted = Store.open(target)
        assert seqs(mounted) == list(range(10))
        assert sql_count(mounted) == 10
        assert mounted.verify() == []
        for write in (
            lambda: mounted.writer("w"),
            lambda: mounted.begin_import("f"),
            lambda: mounted.compact(),
            lambda: mounted.publish(),
            lambda: mounted.retain(tenant="alice"),
            lambda: Store.create(target / "another"),
        ):
            with pytest.raises(ReadOnlyDisk, match=r"(?s)Read-only file system.*Reading still works"):
                write()
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_failed_sync_is_not_acknowledged_and_not_doubled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the file's state is unknown: the records are written once more, to a new file.
    After a failed sync of the directory the file is whole and visible: only the sync is tried again."""
    real = os.fsync
    failing: list[str] = []

    def fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if any(path.endswith(part) or part in Path(path).name for part in failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr("kvwitness.audit.store.durable.os.fsync", fsync)
    with store.writer("w") as writer:
        for number, part in enumerate(("ev-w-", "/flushed/1/1"), start=1):
            writer.append(events(10, number * 10))
            failing.append(part)
            for _ in range(2):
                with pytest.raises(DiskFailure, match=r"(?s)Input/output error.*not acknowledged"):
                    writer.flush()
            if part == "/flushed/1/1":
                with pytest.raises(DiskFailure):
                    writer.append(events(10, 90))  # what waits before it has to be settled first
            assert writer.waiting == 10
            failing.clear()
            assert writer.flush() == f"flushed/1/1/ev-w-000000000{number}.parquet"
            assert writer.waiting == 0
    assert seqs(store) == list(range(10, 30))
    assert_whole(store)


def test_too_many_open_files_is_told(store: Store) -> None:
    with store.writer("w") as writer:
        writer.append(events(1))
        taken: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            with pytest.raises(StoreError, match=r"Too many open files.*\n.*ulimit -n"):
                writer.flush()
        finally:
            for fd in taken:
                os.close(fd)
    assert seqs(store) == [0]
