"""Kills writer, importer, compactor and reader at random moments; nothing acknowledged may be lost, nothing
doubled, and no reader may ever give a wrong answer.

    python -m tests.store.kill_test --kills 200 DIRECTORY

Each role is a process of its own that works in a loop and is killed with SIGKILL and started again. The
writer and the importer note what the store has acknowledged; the reader compares every answer with what had
been acknowledged when it asked. It reads in three ways: by Polars, by SQL through a `Reader`, and by SQL
through a connection that it keeps open until that fails. Failing is allowed, being short or doubled is not.
At the end the store is checked as a whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl

from kvwitness.audit.store import Reader, Store, StoreError
from tests.store.support import events, sha

ROLES = ("writer", "importer", "compactor", "reader")
FILE_ROWS = 400
"""Events of each imported file; source `file-<n>`, seq from 0."""
WRITER = "writer"
"""Source and name of the writer; its seq counts from 0 without a hole."""
BY_SOURCE = "SELECT source, count(*), count(DISTINCT seq), min(seq), max(seq) FROM events GROUP BY source"
RESULTS = "SELECT (SELECT count(*) FROM first_part), (SELECT count(*) FROM second_part)"


class Notes:
    """Lines that a role leaves for the others; each is written whole, by one call."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / f"{name}.notes"

    def add(self, line: object) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def last(self, default: int) -> int:
        lines = self.lines()
        return int(lines[-1]) if lines else default


def working(directory: Path, role: str) -> None:
    """Tell the parent that the role has done something since it was started."""
    print(role, flush=True)


def writer(store: Store, directory: Path, generator: random.Random) -> Iterator[None]:
    acknowledged = Notes(directory, "writer")
    frame = (
        store.events(["source", "seq"])
        .filter(pl.col("source") == WRITER)
        .select(pl.col("seq").max())
        .collect()
    )
    following = (frame.item() if frame.item() is not None else -1) + 1
    with store.writer(WRITER) as out:
        while True:
            count = generator.randint(1, 60)
            out.append(events(count, following, source=WRITER))
            out.flush()
            following += count
            acknowledged.add(following - 1)
            time.sleep(generator.uniform(0, 0.03))
            yield


def file(number: int, generator: random.Random) -> Iterator[object]:
    part = FILE_ROWS // 4
    for first in range(0, FILE_ROWS, part):
        yield events(part, first, source=f"file-{number}")
        time.sleep(generator.uniform(0, 0.02))


def importer(store: Store, directory: Path, generator: random.Random) -> Iterator[None]:
    acknowledged = Notes(directory, "importer")
    while True:
        number = acknowledged.last(-1) + 1
        result = store.import_batches(file(number, generator), sha256=lambda: sha(str(number)))  # noqa: B023
        if result.record.rows != FILE_ROWS:
            Notes(directory, "wrong").add(f"import of {FILE_ROWS} events recorded as {result.record.rows}")
        acknowledged.add(number)
        old = generator.randint(0, number)
        if not store.import_batches(file(old, generator), sha256=sha(str(old))).duplicate:
            Notes(directory, "wrong").add(f"file {old} was imported twice")
        time.sleep(generator.uniform(0, 0.1))
        yield


def compactor(store: Store, directory: Path, generator: random.Random) -> Iterator[None]:
    while True:
        done = store.compact(grace_s=generator.choice([0.0, 0.0, 0.3, 2.0]), wait=True)
        if done.damaged:
            Notes(directory, "wrong").add(f"damaged: {done.damaged}")
        count = generator.randint(0, 9)
        part = pl.DataFrame({"n": list(range(count))}, schema={"n": pl.Int64})
        store.put_result(f"run-{time.time_ns()}", {"first_part": part, "second_part": part})
        time.sleep(generator.uniform(0, 0.2))
        yield


Row = tuple[str, int, int, int, int]


class Checker:
    """Compares what a reader was told with what had been acknowledged before it asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.expect()

    def expect(self) -> None:
        """Take down what has been acknowledged: from now on everybody has to see it."""
        self._written = Notes(self._directory, "writer").last(-1)
        self._imported = Notes(self._directory, "importer").last(-1)

    def judge(self, way: str, rows: list[Row]) -> list[str]:
        """What is wrong with an answer: (source, count, distinct, least, greatest seq) of each source."""
        wrong = []
        seen = {row[0]: row[1:] for row in rows}
        for source, (count, distinct, least, greatest) in seen.items():
            if not (count == distinct == greatest + 1 and least == 0):
                wrong.append(
                    f"{way}: {source} has {count} events, {distinct} different, {least} to {greatest}"
                )
            if source.startswith("file-") and count != FILE_ROWS:
                wrong.append(f"{way}: a part of {source}: {count} events")
        if self._written >= 0 and seen.get(WRITER, (0, 0, 0, -1))[3] < self._written:
            wrong.append(f"{way}: writer is at {seen.get(WRITER)}, {self._written} had been acknowledged")
        missing = [n for n in range(self._imported + 1) if f"file-{n}" not in seen]
        return wrong + [f"{way}: file-{n} is missing, and had been acknowledged" for n in missing]


def by_polars(store: Store) -> list[Row]:
    frame = (
        store.events(["source", "seq"])
        .group_by("source")
        .agg(
            pl.len(),
            pl.col("seq").n_unique().alias("distinct"),
            pl.col("seq").min().alias("least"),
            pl.col("seq").max().alias("greatest"),
        )
        .collect()
    )
    return frame.rows()


@dataclass
class Ways:
    """The three ways in which the reader reads."""

    store: Store
    reader: Reader
    held: duckdb.DuckDBPyConnection | None = None

    def polars(self) -> list[Row]:
        return by_polars(self.store)

    def sql(self) -> list[Row]:
        return self.reader.query(BY_SOURCE).rows()

    def held_open(self) -> list[Row]:
        if self.held is None:
            self.held = self.store.connect()
        try:
            return self.held.execute(BY_SOURCE).fetchall()
        except duckdb.Error:
            self.held.close()
            self.held = None
            raise


def reader(store: Store, directory: Path, generator: random.Random) -> Iterator[None]:
    ways = Ways(store, store.reader())
    checker = Checker(directory)
    answers, wrong = Notes(directory, "answers"), Notes(directory, "wrong")
    while True:
        for ask in (ways.polars, ways.sql, ways.held_open):
            checker.expect()
            try:
                found = checker.judge(ask.__name__, ask())
            except (duckdb.Error, pl.exceptions.PolarsError, OSError, StoreError) as exc:
                answers.add(f"{ask.__name__} failed {type(exc).__name__}")
            else:
                answers.add(f"{ask.__name__} right" if not found else f"{ask.__name__} wrong")
                for line in found:
                    wrong.add(line)
        if store.result_runs():
            _judge_results(ways.reader, answers, wrong)
        yield


def _judge_results(source: Reader, answers: Notes, wrong: Notes) -> None:
    try:
        first, second = source.query(RESULTS).row(0)
    except duckdb.Error as exc:
        answers.add(f"results failed {type(exc).__name__}")
        return
    answers.add("results right" if first == second else "results wrong")
    if first != second:
        wrong.add(f"results of two runs mixed: {first} and {second}")


def play(role: str, directory: Path) -> None:
    """Be one role until killed."""
    parts: dict[str, Callable[[Store, Path, random.Random], Iterator[None]]] = {
        "writer": writer,
        "importer": importer,
        "compactor": compactor,
        "reader": reader,
    }
    for _ in parts[role](Store.open(directory / "store"), directory, random.Random()):
        working(directory, role)


@dataclass
class Outcome:
    """What a run came to."""

    kills: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    events_acknowledged: int = 0
    files_acknowledged: int = 0
    wrong: list[str] = field(default_factory=list)


def start(role: str, directory: Path) -> subprocess.Popen[bytes]:
    with open(directory / f"{role}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.store.kill_test", "--role", role, str(directory)],
            stdout=subprocess.PIPE,
            stderr=log,
        )


def run(directory: Path, kills: int, seed: int, roles: tuple[str, ...] = ROLES) -> Outcome:
    """Kill `kills` times, then check everything. The roles die while they work, not while they start."""
    Store.create(directory / "store")
    generator = random.Random(seed)
    outcome = Outcome()
    running = {role: start(role, directory) for role in roles}
    try:
        while outcome.kills.total() < kills:
            role = generator.choice(roles)
            process = running[role]
            assert process.stdout is not None
            if not process.stdout.readline():  # waits until it has done something
                raise AssertionError(f"{role} ended: {(directory / f'{role}.log').read_text()[-3000:]}")
            time.sleep(generator.uniform(0, 0.25))
            _kill(process)
            outcome.kills[role] += 1
            running[role] = start(role, directory)
    finally:
        for process in running.values():
            _kill(process)
    conclude(directory, outcome)
    return outcome


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def conclude(directory: Path, outcome: Outcome) -> None:
    """Check the store as it was left, tidy it, and check it again."""
    store = Store.open(directory / "store")
    checker = Checker(directory)
    outcome.events_acknowledged = Notes(directory, "writer").last(-1) + 1
    outcome.files_acknowledged = Notes(directory, "importer").last(-1) + 1
    outcome.answers.update(Notes(directory, "answers").lines())
    outcome.wrong += Notes(directory, "wrong").lines()
    for when in ("as it was left", "after tidying"):
        outcome.wrong += checker.judge(f"polars {when}", by_polars(store))
        with store.connect() as con:
            outcome.wrong += checker.judge(f"sql {when}", con.execute(BY_SOURCE).fetchall())
        outcome.wrong += [f"{when}: {p.message}" for p in store.verify() if p.severity == "error"]
        store.compact(grace_s=0)
    outcome.wrong += [f"after tidying: {p.message}" for p in store.verify() if not p.name.startswith("tmp/")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--role", choices=ROLES)
    arguments = parser.parse_args()
    if arguments.role:
        play(arguments.role, arguments.directory)
        return
    arguments.directory.mkdir(parents=True, exist_ok=True)
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    outcome = run(arguments.directory, arguments.kills, seed)
    print(json.dumps({"seed": seed, **vars(outcome)}, indent=2))
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
