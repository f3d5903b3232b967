"""Kills writer, importer, compactor and reader at random moments; nothing acknowledged may be lost, nothing
doubled, and no reader may ever give a wrong answer.

    KVWITNESS_KILLS=200 pytest tests/store/test_store_kills.py

Each role is a process of its own that works in a loop and is killed with SIGKILL and started again. The
writer and the importer note what the store has acknowledged; the reader compares every answer with what had
been acknowledged when it asked. It reads in three ways: by Polars, by SQL through a `Reader`, and by SQL
through a connection that it keeps open until that fails. Failing is allowed, being short or doubled is not.
At the end the store is checked as a whole.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import duckdb
import polars as pl

from kvwitness.audit.store import Reader, Store, StoreError
from tests.store.support import events, sha

ROLES = ("writer", "importer", "compactor", "reader")
FILE_ROWS = 400
"""Events of each imported file; source `file-<n>`, seq from 0."""
WRITERS = ("writer", "writer-2")
"""Names and sources of the writers; the seq of each counts from 0 without a hole."""
GRACES = (0.0, 0.0, 0.3, 2.0)
"""Grace periods in seconds, from which the compactor picks: mostly so short that readers do run into it."""
BACKLOG = 120
"""With so many files waiting for the compactor, writers and importer pause: the test is about kills, not
about load."""
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


@dataclass
class Play:
    """What a role has to work with."""

    role: str
    store: Store
    directory: Path
    graces: tuple[float, ...]
    generator: random.Random = field(default_factory=random.Random)

    def notes(self, name: str) -> Notes:
        return Notes(self.directory, name)

    def pause(self) -> None:
        """Wait while the compactor is behind, but not for ever: it may have just been killed."""
        until = time.monotonic() + 2
        while len(self.store.snapshot().loose) > BACKLOG and time.monotonic() < until:
            time.sleep(0.1)


def writer(play: Play) -> Iterator[None]:
    store, generator = play.store, play.generator
    acknowledged = play.notes(play.role)
    mine = store.events(["source", "seq"]).filter(pl.col("source") == play.role)
    frame = mine.select(pl.col("seq").max()).collect()
    following = (frame.item() if frame.item() is not None else -1) + 1
    with store.writer(play.role) as out:
        while True:
            count = generator.randint(1, 60)
            out.append(events(count, following, source=play.role))
            out.flush()
            following += count
            acknowledged.add(following - 1)
            time.sleep(generator.uniform(0, 0.03))
            play.pause()
            yield


def file(number: int, generator: random.Random) -> Iterator[object]:
    part = FILE_ROWS // 4
    for first in range(0, FILE_ROWS, part):
        yield events(part, first, source=f"file-{number}")
        time.sleep(generator.uniform(0, 0.02))


def importer(play: Play) -> Iterator[None]:
    store, generator = play.store, play.generator
    acknowledged = play.notes("importer")
    while True:
        number = acknowledged.last(-1) + 1
        result = store.import_batches(file(number, generator), sha256=lambda: sha(str(number)))  # noqa: B023
        if result.record.rows != FILE_ROWS:
            play.notes("wrong").add(f"import of {FILE_ROWS} events recorded as {result.record.rows}")
        acknowledged.add(number)
        old = generator.randint(0, number)
        if not store.import_batches(file(old, generator), sha256=sha(str(old))).duplicate:
            play.notes("wrong").add(f"file {old} was imported twice")
        time.sleep(generator.uniform(0, 0.1))
        play.pause()
        yield


def compactor(play: Play) -> Iterator[None]:
    store, generator = play.store, play.generator
    while True:
        done = store.compact(grace_s=generator.choice(play.graces), wait=True)
        if done.damaged:
            play.notes("wrong").add(f"damaged: {done.damaged}")
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
        self._written = {w: Notes(self._directory, w).last(-1) for w in WRITERS}
        self._imported = Notes(self._directory, "importer").last(-1)

    def judge(self, way: str, rows: list[Row]) -> list[str]:
        """What is wrong with an answer: (source, count, distinct, least, greatest seq) of each source."""
        wrong = []
        seen = {row[0]: row[1:] for row in rows}
        for source, (count, distinct, least, greatest) in seen.items():
            if not (count == distinct == greatest + 1 and least == 0):
                wrong.append(f"{way}: {source} has {count} events, {distinct} different, {least} to {greatest}")
            if source.startswith("file-") and count != FILE_ROWS:
                wrong.append(f"{way}: a part of {source}: {count} events")
        for source, last in self._written.items():
            if last >= 0 and seen.get(source, (0, 0, 0, -1))[3] < last:
                wrong.append(f"{way}: {source} is at {seen.get(source)}, {last} had been acknowledged")
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


def reader(play: Play) -> Iterator[None]:
    store = play.store
    ways, shown = Ways(store, store.reader()), False
    checker = Checker(play.directory)
    answers, wrong = play.notes("answers"), play.notes("wrong")
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
            shown = _judge_results(ways.reader, shown, answers, wrong)
        time.sleep(play.generator.uniform(0, 0.05))
        yield


def _judge_results(source: Reader, shown: bool, answers: Notes, wrong: Notes) -> bool:
    """Whether results can be had now. The first of a store are kept a moment before its views show them."""
    try:
        first, second = source.query(RESULTS).row(0)
    except duckdb.Error as exc:
        if shown or not isinstance(exc, duckdb.CatalogException):
            answers.add(f"results failed {type(exc).__name__}")
        return shown
    answers.add("results right" if first == second else "results wrong")
    if first != second:
        wrong.add(f"results of two runs mixed: {first} and {second}")
    return True


def play(role: str, directory: Path, graces: tuple[float, ...], working: Connection) -> None:
    """Be one role (`writer-2` is a second writer) until killed; say so once, when it has done something."""
    log = os.open(directory / f"{role}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    parts = {"writer": writer, "importer": importer, "compactor": compactor, "reader": reader}
    part = parts[role.partition("-")[0]]
    for n, _ in enumerate(part(Play(role, Store.open(directory / "store"), directory, graces))):
        if n == 0:
            working.send_bytes(role.encode())


@dataclass
class Outcome:
    """What a run came to."""

    kills: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    events_acknowledged: int = 0
    files_acknowledged: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Part:
    """A role that is being played by a process."""

    role: str
    process: ForkServerProcess
    working: Connection

    def wait_until_working(self, directory: Path) -> None:
        try:
            self.working.recv_bytes()
        except EOFError:
            log = (directory / f"{self.role}.log").read_text()
            raise AssertionError(f"{self.role} ended by itself: {log[-3000:]}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.working.close()


def start(context: ForkServerContext, role: str, directory: Path, graces: tuple[float, ...]) -> Part:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=play, args=(role, directory, graces, sender), daemon=True)
    process.start()
    sender.close()
    return Part(role, process, receiver)


def run(directory: Path, kills: int, seed: int) -> Outcome:
    """Kill `kills` times, then check everything. The roles die while they work, not while they start."""
    generator = random.Random(seed)
    outcome = Outcome()
    with playing(directory, ROLES, GRACES) as (parts, restart):
        while outcome.kills.total() < kills:
            role = generator.choice(ROLES)
            parts[role].wait_until_working(directory)
            time.sleep(generator.uniform(0, 0.25))
            parts[role].kill()
            outcome.kills[role] += 1
            restart(role)
    conclude(directory, outcome)
    return outcome


def run_quietly(directory: Path, roles: tuple[str, ...], seconds: float) -> Outcome:
    """Let the roles work side by side for some seconds, and until results were read; then check
    everything."""
    with playing(directory, roles, (60.0,)) as (parts, _):
        for part in parts.values():
            part.wait_until_working(directory)
        time.sleep(seconds)
        until = time.monotonic() + 120
        while "results right" not in Notes(directory, "answers").lines() and time.monotonic() < until:
            time.sleep(0.2)
    outcome = Outcome()
    conclude(directory, outcome)
    return outcome


@contextmanager
def playing(
    directory: Path, roles: tuple[str, ...], graces: tuple[float, ...]
) -> Iterator[tuple[dict[str, Part], Callable[[str], None]]]:
    """A new store with processes at work in it; yields them, and a function that starts one again."""
    Store.create(directory / "store")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.kill_test"])  # else most of the time goes into imports
    parts: dict[str, Part] = {}

    def restart(role: str) -> None:
        parts[role] = start(context, role, directory, graces)

    for role in roles:
        restart(role)
    try:
        yield parts, restart
    finally:
        for part in parts.values():
            part.kill()


def conclude(directory: Path, outcome: Outcome) -> None:
    """Check the store as it was left, tidy it, and check it again."""
    store = Store.open(directory / "store")
    checker = Checker(directory)
    outcome.events_acknowledged = sum(Notes(directory, w).last(-1) + 1 for w in WRITERS)
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
