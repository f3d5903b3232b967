"""The file in which the alerts remember: its schema, its transactions, and the copies that views show."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from kvwitness.audit.alerts.published import Copies, Standing, Tables
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store

SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE rules (rule TEXT PRIMARY KEY, done_ns INTEGER NOT NULL, mark_ns INTEGER NOT NULL) STRICT;
CREATE TABLE alerts (
    alert TEXT NOT NULL, episode INTEGER NOT NULL, labels TEXT NOT NULL, state TEXT NOT NULL, verdict TEXT NOT NULL,
    severity TEXT NOT NULL, title TEXT NOT NULL, opened_ns INTEGER NOT NULL, active_ns INTEGER NOT NULL,
    ended_ns INTEGER, ended_by TEXT, version INTEGER NOT NULL, said_ns INTEGER, said_count INTEGER NOT NULL,
    said_severity TEXT, sinks TEXT NOT NULL, notice TEXT, silenced INTEGER NOT NULL,
    PRIMARY KEY (alert, episode)) STRICT;
CREATE TABLE members (
    signal TEXT PRIMARY KEY, alert TEXT NOT NULL, episode INTEGER NOT NULL, base TEXT NOT NULL, rules TEXT NOT NULL,
    mark TEXT NOT NULL, severity TEXT NOT NULL, lasting INTEGER NOT NULL) STRICT;
CREATE INDEX members_of ON members (alert, episode);
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, sink TEXT NOT NULL, alert TEXT NOT NULL, body TEXT,
    state TEXT NOT NULL, queued_ns INTEGER NOT NULL, not_before_ns INTEGER NOT NULL, attempts INTEGER NOT NULL,
    done_ns INTEGER, error TEXT, UNIQUE (key, sink)) STRICT;
CREATE INDEX outbox_due ON outbox (state, sink, id);
CREATE TABLE sinks (
    sink TEXT PRIMARY KEY, failures INTEGER NOT NULL, failing_since_ns INTEGER, retry_ns INTEGER NOT NULL,
    ok_ns INTEGER, error TEXT, reminded_ns INTEGER) STRICT;
CREATE TABLE heartbeats (
    target TEXT PRIMARY KEY, ok_ns INTEGER, failures INTEGER NOT NULL, failing_since_ns INTEGER, error TEXT) STRICT;
CREATE TABLE acceptances (
    id TEXT PRIMARY KEY, conditions TEXT NOT NULL, accepted_by TEXT NOT NULL, reason TEXT NOT NULL,
    severity TEXT NOT NULL, made_ns INTEGER NOT NULL, until_ns INTEGER NOT NULL, warn_ns INTEGER NOT NULL) STRICT;
CREATE TABLE silences (
    id TEXT PRIMARY KEY, conditions TEXT NOT NULL, owner TEXT NOT NULL, reason TEXT NOT NULL, from_ns INTEGER NOT NULL,
    until_ns INTEGER NOT NULL) STRICT;
"""
_FROM_1 = """
ALTER TABLE sinks RENAME TO sinks_1;
CREATE TABLE sinks (
    sink TEXT PRIMARY KEY, failures INTEGER NOT NULL, failing_since_ns INTEGER, retry_ns INTEGER NOT NULL,
    ok_ns INTEGER, error TEXT, reminded_ns INTEGER) STRICT;
INSERT INTO sinks SELECT sink, failures, failing_since_ns, retry_ns, ok_ns, error, reminded_ns FROM sinks_1;
CREATE TABLE heartbeats (
    target TEXT PRIMARY KEY, ok_ns INTEGER, failures INTEGER NOT NULL, failing_since_ns INTEGER, error TEXT) STRICT;
INSERT INTO heartbeats SELECT sink, beat_ns, 0, NULL, NULL FROM sinks_1 WHERE beat_ns IS NOT NULL;
DROP TABLE sinks_1;
CREATE TABLE acceptances (
    id TEXT PRIMARY KEY, conditions TEXT NOT NULL, accepted_by TEXT NOT NULL, reason TEXT NOT NULL,
    severity TEXT NOT NULL, made_ns INTEGER NOT NULL, until_ns INTEGER NOT NULL, warn_ns INTEGER NOT NULL) STRICT;
"""
"""From the first version to the second."""


_REVISION = "revision"


class LedgerFile(ABC):
    """One SQLite file. One process changes it at a time (`lease`), any number may read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._touched: set[str] = set()
        path.parent.mkdir(exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._db.row_factory = sqlite3.Row
        # FULL: what was decided must be on disk before anything is sent for it.
        self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA secure_delete = ON;")
        self._copies = Copies(path.parent.parent / "published")
        self._prepare()

    @classmethod
    def of(cls, store: Store) -> Self:
        """The ledger of a store, made when there is none."""
        return cls(directory(store) / "ledger.sqlite")

    @classmethod
    def to_read(cls, store: Store) -> Self:
        """The ledger of a store, which has one, for reading alone: it waits for nobody and changes nothing."""
        made = cls.__new__(cls)
        made.path = directory(store) / "ledger.sqlite"
        made._db = sqlite3.connect(f"file:{quote(str(made.path))}?mode=ro", uri=True, isolation_level=None, timeout=30)
        made._db.row_factory = sqlite3.Row
        if made.begun:
            made._check(made._version())
        return made

    @property
    def begun(self) -> bool:
        """Whether anything was ever kept: whoever made the file may have died before."""
        return self._version() != 0

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _check(self, found: int) -> None:
        if found != SCHEMA_VERSION:
            older = found < SCHEMA_VERSION
            raise KvwitnessError(
                f"{self.path} was written by another version of kvwitness (its version is {found}).",
                "The next `kvwitness check` brings it up to date." if older else "Upgrade kvwitness.",
            )

    def _prepare(self) -> None:
        with self.transaction():
            if (found := self._version()) in (0, 1):
                for statement in (_SCHEMA if found == 0 else _FROM_1).split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            else:
                self._check(found)
        self.publish()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside becomes durable together at the end, or not at all; then the views show it.

        Raises `KvwitnessError` where it cannot be kept. Where the views cannot be brought up to date, `behind` says
        why, and they fail until they can.
        """
        with self._copies.lock:
            self._touched.clear()
            announced = False
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    if self._touched:
                        self._copies.announce(self._standing())
                        announced = True
                        self.set_fact(_REVISION, str(self._revision() + 1))
                    self._db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):  # it may be undone already
                        self._db.execute("ROLLBACK")
                    if announced:  # nothing came of it
                        self._settle(())
                    raise
            except sqlite3.Error as exc:
                raise KvwitnessError(
                    f"What the alerts remember, {self.path}, cannot be written: {exc}.",
                    "Free space on that disk, or put its permissions right. Nothing was decided; the next check does "
                    "it.",
                ) from exc
            if announced:
                self._settle(self._touched)

    @property
    def behind(self) -> str | None:
        """Why the views of alerts could not be brought up to date; None: they are."""
        return self._copies.behind

    def publish(self) -> None:
        """Bring the views of alerts up to date where somebody who died, or an older version, left them behind."""
        with self._copies.lock:
            if not self._copies.settled(self._revision()):
                self._copies.tidy()
                self._settle(self._tables())

    def _settle(self, touched: Collection[str]) -> None:
        self._copies.settle(self._tables(), touched, self._standing())

    def _revision(self) -> int:
        return int(self.fact(_REVISION) or 0)

    @abstractmethod
    def _standing(self) -> Standing:
        """How far the alerts are."""

    @abstractmethod
    def _tables(self) -> Tables:
        """What the views show."""

    def fact(self, key: str) -> str | None:
        """A fact by name."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, key: str, value: str) -> None:
        """Keep a fact."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def directory(store: Store) -> Path:
    """Where a store keeps what belongs to its alerts."""
    return store.path / "alerts"
