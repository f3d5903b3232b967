"""Auditing a store, and keeping what was found in it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import polars as pl

from kvwitness import __version__
from kvwitness.audit.pipeline import Judgement, Progress, _silent, judge
from kvwitness.audit.store import Store


@dataclass(frozen=True)
class AuditRun:
    """One run over a store."""

    run_id: str
    judgement: Judgement
    seconds: float


def audit_store(store: Store, *, progress: Progress = _silent) -> AuditRun:
    """Judge everything in a store and keep the result in it, whole or not at all.

    Result tables: `findings`, `incidents`, `request_verdicts`, `undecided`, `audit_run` (one row: what was looked at).
    """
    started = time.time_ns()
    with store.reading():
        events = store.events().drop("ingest", "ingest_row", strict=False).collect()
    judgement = judge(events, progress=progress)
    run_id = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started / 1e9)) + f"-{started % 1_000_000_000:09d}"
    seconds = (time.time_ns() - started) / 1e9
    store.put_result(run_id, tables(judgement, run_id, started))
    return AuditRun(run_id, judgement, seconds)


def tables(judgement: Judgement, run_id: str, started_ns: int) -> dict[str, pl.DataFrame]:
    """A judgement as the tables that a store keeps."""
    verdicts = judgement.incidents["verdict"].value_counts() if len(judgement.incidents) else None
    counts = dict(verdicts.iter_rows()) if verdicts is not None else {}
    run = pl.DataFrame(
        {
            "run_id": [run_id],
            "version": [__version__],
            "started_ns": [started_ns],
            "events": [judgement.events],
            "page_events": [judgement.page_events],
            "requests": [len(judgement.requests)],
            **{f"{verdict}_incidents": [int(counts.get(verdict, 0))] for verdict in ("leak", "integrity", "exposure")},
            "unproven_requests": [int((judgement.requests["verdict"] == "unproven").sum())],
        }
    )
    return {
        "findings": judgement.findings,
        "incidents": judgement.incidents,
        "request_verdicts": judgement.requests,
        "undecided": judgement.undecided,
        "audit_run": run,
    }
