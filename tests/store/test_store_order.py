"""Power loss: what is acknowledged was synced before, in the right order. Seen from the calls that are
made."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.store import Store
from tests.store.support import events, sha


class Calls:
    """What would survive a power cut at any moment: files that were synced, names whose directory was
    synced."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced_files: set[int] = set()
        self.unsynced_names: dict[Path, set[Path]] = {}
        self.violations: list[str] = []
        self._root = str(root)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._renaming(getattr(os, name)))
        self._fsync, self._open = os.fsync, os.open
        monkeypatch.setattr(os, "fsync", self._syncing)
        monkeypatch.setattr(os, "open", self._opening)

    def _renaming(self, real: Callable[..., None]) -> Callable[..., None]:
        def rename(source: str | Path, target: str | Path) -> None:
            for path in [Path(source), *Path(source).rglob("*")]:
                if path.is_file() and os.stat(path).st_ino not in self.synced_files:
                    self.violations.append(f"{path} was named {target} before it was synced")
            waiting = self.unsynced_names.get(Path(source))
            if waiting:
                self.violations.append(f"{source} was renamed with unsynced names in it: {waiting}")
            real(source, target)
            self.unsynced_names.setdefault(Path(target).parent, set()).add(Path(target))

        return rename

    def _opening(self, path: str | Path, flags: int, *args: int, **kwargs: int) -> int:
        parent = Path(path).parent
        if flags & os.O_CREAT and parent.name not in ("tmp", "locks") and not Path(path).exists():
            self.unsynced_names.setdefault(parent, set()).add(Path(path))
        return self._open(path, flags, *args, **kwargs)

    def _syncing(self, fd: int) -> None:
        self._fsync(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            self.unsynced_names.pop(path, None)
        else:
            self.synced_files.add(os.fstat(fd).st_ino)

    def settle(self) -> None:
        """Everything so far is acknowledged."""
        assert self.violations == []
        assert self.unsynced_names == {}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(tmp_path, monkeypatch)


def test_everything_is_synced_before_it_is_acknowledged(tmp_path: Path, calls: Calls) -> None:
    store = Store.create(tmp_path / "store")
    calls.settle()
    with store.writer("w") as writer:
        for first in range(0, 30, 10):
            writer.append(events(10, first))
            writer.flush()
            calls.settle()
    store.import_batches(iter([events(10, 30)]), sha256=sha("f"))
    calls.settle()
    store.compact(grace_s=0)
    calls.settle()
    store.put_result("run-1", {"findings": pl.DataFrame({"a": [1]})})
    calls.settle()
    store.retain(older_than_ns=10**18)
    calls.settle()
    store.publish()
    calls.settle()


def test_the_check_itself_notices_a_missing_sync(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer("w") as writer:
        writer.append(events(10))
        monkeypatch.setattr("kvwitness.audit.store.durable.sync_fd", lambda fd: None)
        monkeypatch.setattr("kvwitness.audit.store.writer.sync_dir", lambda path: None)
        writer.flush()
    with pytest.raises(AssertionError):
        calls.settle()
