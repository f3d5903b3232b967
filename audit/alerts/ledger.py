"""What the alerts remember: one SQLite file in the store's directory, changed in transactions that survive any death.

What was decided and what has to be said for it are written together (`Ledger.transaction`), so that neither is ever
there without the other. The queue of what has to be said is worked off afterwards, each message under a key that never
changes. Every transaction that changes what the views of alerts show replaces their copies (`published`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.ledger_tables import Agreements, Episodes, Outbox
from kvwitness.audit.alerts.model import UNKNOWN, Notice
from kvwitness.audit.alerts.published import Standing, Tables
from kvwitness.audit.alerts.rows import Member

LONGEST_PAUSE_NS = 3600 * SECOND_NS
"""For so long at most a sink is left alone, whatever it asks for."""
_SHOWN = 1000
_TAKEN = {
    "alerts": ("opened_ns", "active_ns", "said_ns", "ended_ns"),
    "outbox": ("queued_ns", "done_ns"),
    "sinks": ("failing_since_ns", "ok_ns", "reminded_ns"),
    "heartbeats": ("ok_ns", "failing_since_ns"),
}
"""Table -> columns that hold times at which something was done."""


class Ledger(Episodes, Outbox, Agreements):
    """The memory of the alerts of one store."""

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

    def prune(self, before_ns: int) -> None:
        """Forget messages that were settled, and episodes that ended, before then."""
        if self._db.execute("DELETE FROM outbox WHERE state <> 'waiting' AND done_ns < ?", (before_ns,)).rowcount:
            self._touched |= {"alert_deliveries"}
        if self._db.execute("DELETE FROM alerts WHERE state = 'resolved' AND ended_ns < ?", (before_ns,)).rowcount:
            self._touched |= {"alerts"}
        self._db.execute("DELETE FROM silences WHERE until_ns < ?", (before_ns,))

    def set_back(self, now_ns: int) -> int:
        """Times that were taken from a clock that ran ahead become `now_ns`; returns how far the clock went back, in
        nanoseconds (0: it did not).

        Without that, whoever waits until some time after them would wait until the clock is there once more: for an
        update, a resolution, the end of quiet hours, the next try of a sink. Rules see it by themselves (`Cadence`).
        """
        ahead = [max(self.rules_done().values(), default=0)]
        # A sink may have asked to be left alone until later, for an hour at most.
        self._db.execute("UPDATE sinks SET retry_ns = ?1 WHERE retry_ns > ?2", (now_ns, now_ns + LONGEST_PAUSE_NS))
        self._db.execute(
            "UPDATE outbox SET not_before_ns = ?1 WHERE state = 'waiting' AND queued_ns > ?1 AND not_before_ns > ?1",
            (now_ns,),
        )
        for table, columns in _TAKEN.items():
            for column in columns:
                found = self._db.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] or 0
                if found > now_ns:
                    ahead.append(found)
                    self._db.execute(f"UPDATE {table} SET {column} = ?1 WHERE {column} > ?1", (now_ns,))
        back = max(0, max(ahead) - now_ns)
        if back:
            self._touched |= {"alerts", "alert_deliveries", "alert_sinks", "alert_heartbeats"}
        return back

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
