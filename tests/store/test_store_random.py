"""Random sequences of everything that a store can do, beside a model that is a plain list."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from kvwitness.audit.store import Store, Writer
from tests.store.support import T0, assert_whole, events, sha

TENANTS = ("alice", "bob", "carol")
Row = tuple[str, int, str]
"""(source, seq, tenant)"""


class Model:
    """The store, and what has to be in it."""

    def __init__(self, path: Path, generator: random.Random) -> None:
        self.path = path
        self.store = Store.create(path)
        self.generator = generator
        self.rows: list[Row] = []
        self.files: list[tuple[str, pa.Table]] = []
        self.numbers = dict.fromkeys(("w1", "w2", "file"), 0)
        self.writers: dict[str, Writer] = {}
        self.marks: dict[str, int] = {}
        self.new: list[Row] = []

    def some(self, source: str) -> tuple[pa.Table, list[Row]]:
        parts, rows = [], []
        for _ in range(self.generator.randint(1, 3)):
            tenant, count = self.generator.choice(TENANTS), self.generator.randint(1, 30)
            first = self.numbers[source]
            parts.append(events(count, first, source=source, tenant=tenant))
            rows += [(source, first + n, tenant) for n in range(count)]
            self.numbers[source] += count
        return pa.concat_tables(parts), rows

    def add(self, rows: list[Row]) -> None:
        self.rows += rows
        self.new += rows

    def write(self) -> None:
        name = self.generator.choice(("w1", "w2"))
        if name not in self.writers:
            self.writers[name] = self.store.writer(name)
        writer = self.writers[name]
        table, rows = self.some(name)
        writer.append(table)
        writer.flush()
        self.add(rows)
        if self.generator.random() < 0.3:
            self.writers.pop(name).close()

    def bring(self) -> None:
        table, rows = self.some("file")
        digest = sha(str(len(self.files)))
        self.files.append((digest, table))
        assert self.store.import_batches(table.to_batches(), sha256=digest).added == len(rows)
        self.add(rows)

    def bring_again(self) -> None:
        if self.files:
            digest, table = self.generator.choice(self.files)
            assert self.store.import_batches(table.to_batches(), sha256=lambda: digest).duplicate

    def compact(self) -> None:
        self.store.compact(grace_s=self.generator.choice((0.0, 0.0, 3600.0)))

    def forget_tenant(self) -> None:
        tenant = self.generator.choice(TENANTS)
        self.remove(self.store.retain(tenant=tenant).rows, lambda row: row[2] == tenant)

    def forget_old(self) -> None:
        limit = self.generator.randint(0, max(self.numbers.values()))
        removal = self.store.retain(older_than_ns=T0 + limit * 1_000_000, grace_s=0)
        self.remove(removal.rows, lambda row: row[1] < limit)

    def remove(self, told: int, goes: Callable[[Row], bool]) -> None:
        assert told == sum(map(goes, self.rows))
        self.rows = [row for row in self.rows if not goes(row)]
        self.new = [row for row in self.new if not goes(row)]

    def keep_results(self) -> None:
        self.store.put_result("run", {"findings": pl.DataFrame({"n": [len(self.rows)]})})

    def open_again(self) -> None:
        self.store = Store.open(self.path)

    def read_what_is_new(self) -> None:
        snapshot = self.store.snapshot()
        frame = snapshot.events(["source", "seq", "tenant"], since=self.marks).collect()
        assert sorted(frame.rows()) == sorted(self.new)
        self.marks, self.new = snapshot.marks(), []

    def check(self) -> None:
        frame = self.store.events(["source", "seq", "tenant"]).collect()
        assert sorted(frame.rows()) == sorted(self.rows)


STEPS = (
    Model.write, Model.write, Model.write, Model.bring, Model.bring_again, Model.compact, Model.compact,
    Model.read_what_is_new, Model.forget_tenant, Model.forget_old, Model.keep_results, Model.open_again,
)  # fmt: skip


def walk(path: Path, seed: int, steps: int) -> None:
    generator = random.Random(seed)
    model = Model(path, generator)
    for _ in range(steps):
        generator.choice(STEPS)(model)
        model.check()
    for writer in model.writers.values():
        writer.close()
    model.store.compact(grace_s=0)
    model.check()
    assert_whole(model.store)


def test_a_random_life_of_a_store(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    walk(tmp_path / "store", seed, 25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_long_lives_of_a_store(tmp_path: Path, seed: int) -> None:
    walk(tmp_path / "store", seed, 60)
