"""The state of the alerts as tables, for commands and pages. Reading needs no lease and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.ledger_file import directory
from kvwitness.audit.store import Store

ALERTS = pl.Schema(
    {
        "alert": pl.String(),
        "episode": pl.Int64(),
        "state": pl.String(),
        "severity": pl.String(),
        "verdict": pl.String(),
        "title": pl.String(),
        "incidents": pl.Int64(),
        "opened_ns": pl.Int64(),
        "active_ns": pl.Int64(),
        "ended_ns": pl.Int64(),
        "ended_by": pl.String(),
        "silenced": pl.Boolean(),
        "accepted": pl.String(),
        "messages": pl.Int64(),
        "sinks": pl.List(pl.String()),
    }
)
DELIVERIES = pl.Schema(
    {
        "key": pl.String(),
        "sink": pl.String(),
        "alert": pl.String(),
        "state": pl.String(),
        "queued_ns": pl.Int64(),
        "not_before_ns": pl.Int64(),
        "done_ns": pl.Int64(),
        "attempts": pl.Int64(),
        "error": pl.String(),
    }
)
SINKS = pl.Schema(
    {
        "sink": pl.String(),
        "failures": pl.Int64(),
        "failing_since_ns": pl.Int64(),
        "retry_ns": pl.Int64(),
        "ok_ns": pl.Int64(),
        "error": pl.String(),
        "waiting": pl.Int64(),
    }
)
HEARTBEATS = pl.Schema(
    {
        "target": pl.String(),
        "ok_ns": pl.Int64(),
        "failures": pl.Int64(),
        "failing_since_ns": pl.Int64(),
        "error": pl.String(),
    }
)
RULES_DONE = pl.Schema({"rule": pl.String(), "done_ns": pl.Int64(), "mark_ns": pl.Int64()})


@dataclass(frozen=True)
class Status:
    """What is remembered."""

    alerts: pl.DataFrame
    """One row per episode, the newest first."""
    deliveries: pl.DataFrame
    """One row per message and sink, the newest first: `waiting`, `delivered` or `refused`."""
    sinks: pl.DataFrame
    """One row per sink that was ever sent to."""
    heartbeats: pl.DataFrame
    """One row per target of the heartbeat."""
    rules: pl.DataFrame
    """When each rule was looked at last, and how far the record had come."""


def status(store: Store) -> Status:
    """The state of the alerts of a store; empty tables where nothing was ever checked."""
    nothing = Status(*(pl.DataFrame(schema=schema) for schema in (ALERTS, DELIVERIES, SINKS, HEARTBEATS, RULES_DONE)))
    if not (directory(store) / "ledger.sqlite").exists():
        return nothing
    with Ledger.to_read(store) as ledger:
        if not ledger.begun:
            return nothing
        deliveries = ledger.deliveries()
        per_sink = ledger.waiting()
        done, marks = ledger.rules_done(), ledger.marks()
        alerts = [
            vars(row)
            | {
                "incidents": len(ledger.members("alert = ? AND episode = ?", row.alert, row.episode)),
                "accepted": row.labels.get("accepted"),
                "messages": row.version,
                "sinks": list(row.sinks),
            }
            for row in ledger.alerts()
        ]
        names = sorted({row.sink for row in ledger.sinks()} | set(per_sink))
        sinks = [vars(ledger.sink(name)) | {"waiting": per_sink.get(name, 0)} for name in names]
        beats = [vars(row) for _, row in sorted(ledger.heartbeats().items())]
        rules = [{"rule": rule, "done_ns": at, "mark_ns": marks.get(rule, 0)} for rule, at in sorted(done.items())]
    return Status(
        _frame(alerts, ALERTS),
        _frame(deliveries, DELIVERIES),
        _frame(sinks, SINKS),
        _frame(beats, HEARTBEATS),
        _frame(rules, RULES_DONE),
    )


def _frame(rows: list[dict[str, object]], schema: pl.Schema) -> pl.DataFrame:
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)
