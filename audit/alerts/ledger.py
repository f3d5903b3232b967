"""What the alerts remember: one SQLite file in the store's directory, changed in transactions that survive any death.

What was decided and what has to be said for it are written together (`Ledger.transaction`), so that neither is ever
there without the other. The queue of what has to be said is worked off afterwards, each message under a key that never
changes. Every transaction that changes what the views of alerts show replaces their copies (`published`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from kvwitness.audit.alerts.model import OPERATION_PREFIX, UNKNOWN, Notice
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


@dataclass
class AlertRow:
    """One episode of an alert, as it is kept."""

    alert: str
    episode: int
    labels: Mapping[str, str]
    state: str
    """`firing` or `resolved`."""
    verdict: str
    severity: str
    title: str
    opened_ns: int
    active_ns: int
    """When something about it was new last."""
    ended_ns: int | None = None
    ended_by: str | None = None
    version: int = 0
    said_ns: int | None = None
    said_count: int = 0
    said_severity: str | None = None
    sinks: tuple[str, ...] = ()
    """Those that heard of the episode."""
    notice: str | None = None
    """The last message, as JSON."""
    silenced: bool = False


@dataclass(frozen=True)
class Member:
    """A signal that belongs to an alert."""

    signal: str
    alert: str
    episode: int
    base: str
    """Labels before a storm put it elsewhere."""
    rules: tuple[str, ...]
    mark: str
    """What it said when it was last looked at; another text means news."""
    severity: str
    lasting: bool

    @property
    def about_incident(self) -> bool:
        """Whether it is an incident; others are about kvwitness itself."""
        return not self.signal.startswith(OPERATION_PREFIX)


@dataclass(frozen=True)
class Queued:
    """A message that waits."""

    id: int
    key: str
    sink: str
    notice: Notice
    attempts: int


@dataclass(frozen=True)
class SinkRow:
    """How delivery to a sink goes."""

    sink: str
    failures: int = 0
    """In a row."""
    failing_since_ns: int | None = None
    retry_ns: int = 0
    ok_ns: int | None = None
    error: str | None = None
    reminded_ns: int | None = None


@dataclass(frozen=True)
class HeartbeatRow:
    """How a sign of life arrives at one of its targets."""

    target: str
    """Name of a sink, or `file`."""
    ok_ns: int | None = None
    """When one arrived last."""
    failures: int = 0
    """In a row."""
    failing_since_ns: int | None = None
    error: str | None = None


_REVISION = "revision"
_SHOWN = 1000


class Ledger:
    """The memory of the alerts of one store. One process changes it at a time (`lease`), any number may read."""

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

    # -- what the views show ----------------------------------------------------------------------------

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

    def _standing(self) -> Standing:
        checked = max(self.rules_done().values(), default=None)
        # A first check that could not judge the store leaves an alert, and no rule that was looked at.
        begun = checked is not None or self._db.execute("SELECT 1 FROM alerts LIMIT 1").fetchone() is not None
        return Standing(self._revision(), begun, checked)

    def _tables(self) -> Tables:
        return {
            "alerts": self._shown_alerts,
            "alert_incidents": self._shown_incidents,
            "alert_deliveries": self._shown_deliveries,
            "alert_sinks": lambda: [vars(row) for row in self.sinks()],
            "alert_heartbeats": lambda: [vars(row) for row in self.heartbeats().values()],
            "alert_checks": self._shown_checks,
        }

    def _shown_alerts(self) -> Iterator[dict[str, Any]]:
        members: dict[tuple[str, int], list[Member]] = {}
        for member in self.members():
            members.setdefault((member.alert, member.episode), []).append(member)
        for row in self.alerts():
            own = members.get((row.alert, row.episode), [])
            incidents = [m.signal for m in own if m.about_incident]
            rules = {m.rules[0] for m in own}
            label = {name: value for name, value in row.labels.items() if value != UNKNOWN}
            yield vars(row) | {
                "incident": incidents[0] if len(incidents) == 1 else None,
                "incidents": len(own),
                "rule": label.get("rule") or (rules.pop() if len(rules) == 1 else None),
                "tenant": label.get("tenant"),
                "engine": label.get("engine"),
                "accepted": label.get("accepted"),
                "time_ns": row.opened_ns,
                "until_ns": row.ended_ns,
                "messages": row.version,
            }

    def _shown_incidents(self) -> Iterator[dict[str, Any]]:
        return (vars(m) | {"incident": m.signal} for m in self.members() if m.about_incident)

    def _shown_deliveries(self) -> list[dict[str, Any]]:
        newest = self.deliveries(_SHOWN)
        known = {row["id"] for row in newest}
        return [*newest, *(row for row in self._deliveries("WHERE state = 'waiting'") if row["id"] not in known)]

    def _shown_checks(self) -> list[dict[str, Any]]:
        marks = self.marks()
        return [{"rule": r, "looked_ns": at, "mark_ns": marks.get(r)} for r, at in sorted(self.rules_done().items())]

    # -- small facts, rules -----------------------------------------------------------------------------

    def fact(self, key: str) -> str | None:
        """A fact by name."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, key: str, value: str) -> None:
        """Keep a fact."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def rules_done(self) -> dict[str, int]:
        """Rule -> when it was last looked at."""
        return {row[0]: row[1] for row in self._db.execute("SELECT rule, done_ns FROM rules")}

    def marks(self) -> dict[str, int]:
        """Rule -> reference time up to which the record had come when it was last looked at."""
        return {row[0]: row[1] for row in self._db.execute("SELECT rule, mark_ns FROM rules")}

    def set_done(self, rule: str, done_ns: int, mark_ns: int) -> None:
        """A rule was looked at. Its mark never goes back."""
        self._touched |= {"alert_checks"}
        self._db.execute(
            "INSERT INTO rules VALUES (?, ?, ?) ON CONFLICT (rule) DO UPDATE SET done_ns = excluded.done_ns, "
            "mark_ns = max(mark_ns, excluded.mark_ns)",
            (rule, done_ns, mark_ns),
        )

    # -- alerts and their members -----------------------------------------------------------------------

    def newest(self, alert: str) -> AlertRow | None:
        """The newest episode of an alert."""
        found = self._alerts("WHERE alert = ? ORDER BY episode DESC LIMIT 1", alert)
        return found[0] if found else None

    def firing(self) -> list[AlertRow]:
        """All that fire, the oldest first."""
        return self._alerts("WHERE state = 'firing' ORDER BY opened_ns, alert")

    def alerts(self) -> list[AlertRow]:
        """Every episode on record, the newest first."""
        return self._alerts("ORDER BY opened_ns DESC, alert")

    def episodes_since(self, alert: str, since_ns: int) -> int:
        """How many episodes of an alert began at `since_ns` or later."""
        query = "SELECT count(*) FROM alerts WHERE alert = ? AND opened_ns >= ?"
        return int(self._db.execute(query, (alert, since_ns)).fetchone()[0])

    def _alerts(self, rest: str, *values: object) -> list[AlertRow]:
        rows = self._db.execute(f"SELECT * FROM alerts {rest}", values)
        return [_alert(row) for row in rows]

    def keep(self, row: AlertRow) -> None:
        """Write an episode."""
        self._touched |= {"alerts"}
        raw = vars(row) | {"labels": json.dumps(dict(row.labels), sort_keys=True), "sinks": json.dumps(row.sinks)}
        names = ", ".join(raw)
        self._db.execute(
            f"INSERT OR REPLACE INTO alerts ({names}) VALUES ({', '.join(f':{name}' for name in raw)})", raw
        )

    def members(self, where: str = "", *values: object) -> list[Member]:
        """Signals that belong to alerts; `where` is a condition in SQL."""
        rows = self._db.execute(f"SELECT * FROM members {f'WHERE {where}' if where else ''} ORDER BY rowid", values)
        return [
            Member(**(dict(row) | {"rules": tuple(json.loads(row["rules"])), "lasting": bool(row["lasting"])}))
            for row in rows
        ]

    def set_member(self, member: Member) -> None:
        """Write a member."""
        self._touched |= {"alerts", "alert_incidents"}
        self._db.execute(
            "INSERT OR REPLACE INTO members VALUES "
            "(:signal, :alert, :episode, :base, :rules, :mark, :severity, :lasting)",
            vars(member) | {"rules": json.dumps(member.rules)},
        )

    def drop_member(self, signal: str) -> None:
        """A signal is gone."""
        self._touched |= {"alerts", "alert_incidents"}
        self._db.execute("DELETE FROM members WHERE signal = ?", (signal,))

    # -- the queue --------------------------------------------------------------------------------------

    def enqueue(self, notice: Notice, sink: str, now_ns: int, not_before_ns: int) -> None:
        """A message for a sink. One that it replaces, and that waits for the end of quiet hours, is dropped."""
        self._touched |= {"alert_deliveries"}
        self._db.execute(
            "DELETE FROM outbox WHERE sink = ? AND alert = ? AND state = 'waiting' AND attempts = 0 "
            "AND not_before_ns > ?",
            (sink, notice.alert, now_ns),
        )
        self._db.execute(
            "INSERT INTO outbox (key, sink, alert, body, state, queued_ns, not_before_ns, attempts) "
            "VALUES (?, ?, ?, ?, 'waiting', ?, ?, 0)",
            (notice.key, sink, notice.alert, notice.to_json(), now_ns, not_before_ns),
        )

    def first_waiting(self, sink: str, now_ns: int) -> Queued | None:
        """The next message of a sink."""
        row = self._db.execute(
            "SELECT * FROM outbox WHERE state = 'waiting' AND sink = ? AND not_before_ns <= ? ORDER BY id LIMIT 1",
            (sink, now_ns),
        ).fetchone()
        if row is None:
            return None
        return Queued(row["id"], row["key"], row["sink"], Notice.from_json(row["body"]), row["attempts"])

    def waiting_sinks(self) -> list[str]:
        """Sinks with messages that wait."""
        query = "SELECT DISTINCT sink FROM outbox WHERE state = 'waiting' ORDER BY sink"
        return [row[0] for row in self._db.execute(query)]

    def waiting(self) -> dict[str, int]:
        """Sink -> how many messages wait for it."""
        query = "SELECT sink, count(*) FROM outbox WHERE state = 'waiting' GROUP BY sink"
        return {row[0]: row[1] for row in self._db.execute(query)}

    def next_wish_ns(self) -> int | None:
        """When the next waiting message may go, sinks that fail left aside."""
        row = self._db.execute(
            "SELECT min(max(o.not_before_ns, coalesce(s.retry_ns, 0))) FROM outbox o LEFT JOIN sinks s USING (sink) "
            "WHERE o.state = 'waiting'"
        ).fetchone()
        return None if row[0] is None else int(row[0])

    def attempt(self, queued: Queued) -> None:
        """An attempt begins: whatever happens now, the message may have arrived."""
        self._touched |= {"alert_deliveries"}
        self._db.execute("UPDATE outbox SET attempts = attempts + 1 WHERE id = ?", (queued.id,))

    def settle(self, queued: Queued, state: str, now_ns: int, error: str | None = None) -> None:
        """A message was `delivered` or `refused`; what it said is not kept any longer."""
        self._touched |= {"alert_deliveries"}
        self._db.execute(
            "UPDATE outbox SET state = ?, done_ns = ?, error = ?, body = NULL WHERE id = ?",
            (state, now_ns, error, queued.id),
        )

    def deliveries(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Messages, the newest first, without what they say."""
        return self._deliveries("ORDER BY id DESC LIMIT ?", limit)

    def _deliveries(self, rest: str, *values: object) -> list[dict[str, Any]]:
        names = "id, key, sink, alert, state, queued_ns, not_before_ns, attempts, done_ns, error"
        return [dict(row) for row in self._db.execute(f"SELECT {names} FROM outbox {rest}", values)]

    def refused_since(self, since_ns: int) -> dict[str, int]:
        """Sink -> messages that it refused since then."""
        query = "SELECT sink, count(*) FROM outbox WHERE state = 'refused' AND done_ns >= ? GROUP BY sink"
        return {row[0]: row[1] for row in self._db.execute(query, (since_ns,))}

    def prune(self, before_ns: int) -> None:
        """Forget messages that were settled, and episodes that ended, before then."""
        if self._db.execute("DELETE FROM outbox WHERE state <> 'waiting' AND done_ns < ?", (before_ns,)).rowcount:
            self._touched |= {"alert_deliveries"}
        if self._db.execute("DELETE FROM alerts WHERE state = 'resolved' AND ended_ns < ?", (before_ns,)).rowcount:
            self._touched |= {"alerts"}
        self._db.execute("DELETE FROM silences WHERE until_ns < ?", (before_ns,))

    def sink(self, name: str) -> SinkRow:
        """How delivery to a sink goes."""
        row = self._db.execute("SELECT * FROM sinks WHERE sink = ?", (name,)).fetchone()
        return SinkRow(name) if row is None else SinkRow(**dict(row))

    def sinks(self) -> list[SinkRow]:
        """All sinks that were ever sent to."""
        return [SinkRow(**dict(row)) for row in self._db.execute("SELECT * FROM sinks ORDER BY sink")]

    def set_sink(self, row: SinkRow) -> None:
        """Write how delivery to a sink goes."""
        self._touched |= {"alert_sinks"}
        self._db.execute(
            "INSERT OR REPLACE INTO sinks VALUES "
            "(:sink, :failures, :failing_since_ns, :retry_ns, :ok_ns, :error, :reminded_ns)",
            vars(row),
        )

    def heartbeats(self) -> dict[str, HeartbeatRow]:
        """Target -> how signs of life arrive there."""
        return {row["target"]: HeartbeatRow(**dict(row)) for row in self._db.execute("SELECT * FROM heartbeats")}

    def set_heartbeat(self, row: HeartbeatRow) -> None:
        """Write how signs of life arrive."""
        self._touched |= {"alert_heartbeats"}
        self._db.execute(
            "INSERT OR REPLACE INTO heartbeats VALUES (:target, :ok_ns, :failures, :failing_since_ns, :error)",
            vars(row),
        )

    # -- risk acceptances that were given by command ----------------------------------------------------

    def acceptances(self) -> list[dict[str, Any]]:
        """The risk acceptances that were given by command, the oldest first."""
        rows = self._db.execute("SELECT * FROM acceptances ORDER BY made_ns, id")
        return [dict(row) | {"conditions": json.loads(row["conditions"])} for row in rows]

    def set_acceptance(self, row: Mapping[str, Any]) -> None:
        """Write a risk acceptance."""
        self._db.execute(
            "INSERT OR REPLACE INTO acceptances VALUES "
            "(:id, :conditions, :accepted_by, :reason, :severity, :made_ns, :until_ns, :warn_ns)",
            dict(row) | {"conditions": json.dumps(row["conditions"])},
        )

    def drop_acceptance(self, ident: str) -> bool:
        """Take a risk acceptance back; whether there was one."""
        return bool(self._db.execute("DELETE FROM acceptances WHERE id = ?", (ident,)).rowcount)

    # -- silences ---------------------------------------------------------------------------------------

    def silences(self) -> list[dict[str, Any]]:
        """Silences that were set by command."""
        rows = self._db.execute("SELECT * FROM silences ORDER BY until_ns")
        return [dict(row) | {"conditions": json.loads(row["conditions"])} for row in rows]

    def set_silence(self, row: Mapping[str, Any]) -> None:
        """Write a silence."""
        raw = dict(row) | {"conditions": json.dumps(row["conditions"])}
        self._db.execute(
            "INSERT OR REPLACE INTO silences VALUES (:id, :conditions, :owner, :reason, :from_ns, :until_ns)", raw
        )

    def forget(self, tenant: str) -> None:
        """Forget a tenant that was removed from the store: alerts and silences that bear its name go, and no message
        that waits names it."""
        self._touched |= {"alerts", "alert_incidents", "alert_deliveries"}
        for row in self.alerts():
            if tenant in row.labels.values():
                for table in ("alerts", "members", "outbox"):
                    self._db.execute(f"DELETE FROM {table} WHERE alert = ?", (row.alert,))
                self._db.execute("DELETE FROM meta WHERE key = ?", (f"labels/{row.alert}",))
            elif row.notice is not None:
                self.keep(replace(row, notice=_without(row.notice, tenant)))
        for ident, body in self._db.execute("SELECT id, body FROM outbox WHERE body IS NOT NULL").fetchall():
            self._db.execute("UPDATE outbox SET body = ? WHERE id = ?", (_without(body, tenant), ident))
        for silence in self.silences():
            if tenant in silence["conditions"].get("tenant", ()):
                self._db.execute("DELETE FROM silences WHERE id = ?", (silence["id"],))
        for acceptance in self.acceptances():
            if tenant in acceptance["conditions"].get("tenant", ()):
                self.drop_acceptance(acceptance["id"])


def _without(notice: str, tenant: str) -> str:
    told = Notice.from_json(notice)
    return replace(told, tenant_names=tuple(name for name in told.tenant_names if name != tenant)).to_json()


def _alert(row: sqlite3.Row) -> AlertRow:
    raw = dict(row)
    return AlertRow(
        **raw
        | {
            "labels": json.loads(raw["labels"]),
            "sinks": tuple(json.loads(raw["sinks"])),
            "silenced": bool(raw["silenced"]),
        }
    )


def directory(store: Store) -> Path:
    """Where a store keeps what belongs to its alerts."""
    return store.path / "alerts"
