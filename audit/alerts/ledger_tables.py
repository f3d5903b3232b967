"""The tables of the ledger, each with what is asked of it and written to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from kvwitness.audit.alerts.ledger_file import LedgerFile
from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.rows import AlertRow, HeartbeatRow, Member, Queued, SinkRow


class Episodes(LedgerFile):
    """Which rules were looked at, and the alerts and their members."""

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


class Outbox(LedgerFile):
    """What has to be said, and how saying it goes."""

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


class Agreements(LedgerFile):
    """What people have set by command: accepted risks, and silences."""

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
