"""Death at every single step: each operation is cut off before its 1st, 2nd, 3rd ... change of the disk.

After each cut the store has to be sound and to hold either all or nothing of what was under way, and the
operation repeated has to come to the same end as if nothing had happened. `kill_test.py` does it with real
processes at random.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvwitness.audit.store import Store
from tests.store.support import T0, assert_whole, events, flip, seqs, sha, sql_count

CHANGES = ("rename", "replace", "unlink", "mkdir", "rmdir", "fsync")
"""Calls of `os` by which the store changes what is on the disk, or makes it stay."""


class Death(BaseException):
    """The process ends here. Not an Exception: nothing may handle it."""


@contextmanager
def death_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Inside, the change of the disk number `step` does not happen, and none after it; yields whether it came
    to it.

    Cleaning up would be a change, too: a killed process does not clean up.
    """
    count = 0

    def patched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count >= step:
                raise Death
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patches:
        for name in CHANGES:
            patches.setattr(os, name, patched(getattr(os, name)))
        yield lambda: count >= step


def flush(path: Path) -> None:
    store = Store.open(path)
    done = set(seqs(store))  # a writer that comes back asks what has arrived
    if not done >= set(range(40, 50)):
        with store.writer("w") as writer:
            writer.append(events(10, 40))


def import_file(path: Path) -> None:
    Store.open(path).import_batches(iter([events(10, 40)]), sha256=sha("g"))


def compact(path: Path) -> None:
    Store.open(path).compact(grace_s=0)


def retain_by_age(path: Path) -> None:
    Store.open(path).retain(older_than_ns=T0 + 15 * 1_000_000, grace_s=0)


def retain_by_tenant(path: Path) -> None:
    Store.open(path).retain(tenant="bob")


def put_result(path: Path) -> None:
    Store.open(path).put_result("run-2", {"findings": pl.DataFrame({"run": [2, 2]})})


def publish(path: Path) -> None:
    Store.open(path).publish()


def quarantine(path: Path) -> None:
    Store.open(path).quarantine()


BEFORE = list(range(40))
OPERATIONS: dict[str, tuple[Callable[[Path], None], list[int]]] = {
    "flush": (flush, list(range(50))),
    "import": (import_file, list(range(50))),
    "compact": (compact, BEFORE),
    "retain by age": (retain_by_age, list(range(15, 40))),
    "retain by tenant": (retain_by_tenant, list(range(30))),
    "results": (put_result, BEFORE),
    "publish": (publish, BEFORE),
}


def prepare(path: Path) -> None:
    """A store that has everything: sealed, retired, live and imported segments, and results."""
    store = Store.create(path)
    with store.writer("w") as writer:
        for first in (0, 10):
            writer.append(events(10, first))
            writer.flush()
        store.compact(grace_s=3600)
        writer.append(events(10, 20))
    store.import_batches(iter([events(10, 30, tenant="bob")]), sha256=sha("f"))
    store.put_result("run-1", {"findings": pl.DataFrame({"run": [1]})})


def check_sound(store: Store, allowed: tuple[list[int], list[int]]) -> None:
    found = seqs(store)
    assert found in allowed
    assert sql_count(store) == len(found)
    assert [p for p in store.verify() if p.severity == "error"] == []
    if store.result_runs():
        run = store.result_runs()[-1].run_id
        assert store.result("findings")["run"].to_list() == {"run-1": [1], "run-2": [2, 2]}[run]


@pytest.mark.parametrize(
    "name", [n if n in ("flush", "import") else pytest.param(n, marks=pytest.mark.slow) for n in OPERATIONS]
)
def test_death_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    operation, after = OPERATIONS[name]
    path, base = tmp_path / "store", tmp_path / "base"
    prepare(path)
    shutil.copytree(path, base)
    monkeypatch.setattr("kvwitness.audit.store.expiry._LEFTOVER_S", -1.0)
    step, died = 0, True
    while died:
        step += 1
        shutil.rmtree(path)
        shutil.copytree(base, path)
        with death_at(step, monkeypatch) as reached:
            with suppress(Death):
                operation(path)
            died = reached()
        check_sound(Store.open(path), (BEFORE, after))
        if died:
            operation(path)
        store = Store.open(path)
        check_sound(store, (after, after))
        store.compact(grace_s=0)
        assert seqs(store) == after
        assert_whole(store)
    assert step > 3


@pytest.mark.slow
def test_death_at_every_step_of_a_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, base = tmp_path / "store", tmp_path / "base"
    prepare(path)
    (damaged,) = path.glob("flushed/*/*/ev-w-0000000003.parquet")
    flip(damaged, 400)
    shutil.copytree(path, base)
    step, died = 0, True
    while died:
        step += 1
        shutil.rmtree(path)
        shutil.copytree(base, path)
        with death_at(step, monkeypatch) as reached:
            with suppress(Death):
                quarantine(path)
            died = reached()
        quarantine(path)
        store = Store.open(path)
        assert seqs(store) == [*range(20), *range(30, 40)]
        assert sql_count(store) == 30
        assert {p.kind for p in store.verify()} <= {"quarantined", "leftover"}
        assert [q["rows"] for q in store.info()["quarantined"]] == [10]
    assert step > 3
