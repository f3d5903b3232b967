"""The doors of the audit for programs: judge a trace file, and the form in which a judgement is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from kvwitness.audit.pagesets import in_ranges
from kvwitness.audit.pipeline import Judgement, Progress, _silent, judge
from kvwitness.audit.trace import ImportReport, load_trace
from kvwitness.audit.unread import losses_of


def judge_file(
    source: str | Path | BinaryIO,
    *,
    overrides: Mapping[str, Mapping[str, float | int | str]] | None = None,
    progress: Progress = _silent,
) -> tuple[Judgement, ImportReport, pl.DataFrame]:
    """Judge one trace file without a store. Returns the judgement, what the reader said, and the events.

    `overrides` are rule parameters from configuration.
    """
    progress("reading the trace", 0.0)
    table, report = load_trace(source)
    events = pl.from_arrow(table)
    assert isinstance(events, pl.DataFrame)
    rejected = losses_of(report.unread, events.with_row_index("row"))
    return judge(events, overrides=overrides, rejected=rejected, progress=progress), report, events


def judge_trace(source: str | Path | BinaryIO) -> dict[str, Any]:
    """Judge one trace file; the result is what `kvwitness audit --trace FILE --format json` prints."""
    judgement, _, _ = judge_file(source)
    return as_document(judgement)


def request_name(request: str, incarnation: int | None) -> str:
    """A request id; a second life under the same id is told apart by its number."""
    return f"{request}#{incarnation}" if incarnation else request


def as_document(judgement: Judgement) -> dict[str, Any]:
    """A judgement as plain data: findings, a verdict per request, findings of engines, rules without input."""
    told = [_finding(row) for row in judgement.findings.iter_rows(named=True)]
    verdicts = {
        request_name(request, incarnation): verdict
        for request, incarnation, verdict in judgement.requests.select("request", "incarnation", "verdict").iter_rows()
    }
    return {
        "findings": [f for f in told if f["request"] is not None],
        "requests": verdicts,
        "engine_findings": [f for f in told if f["request"] is None],
        "undecided": judgement.undecided.to_dicts(),
    }


def _finding(row: dict[str, Any]) -> dict[str, Any]:
    request = row["request"]
    seqs = row["seqs"] or []
    told = {
        "rule": row["rule"],
        "verdict": row["verdict"],
        "request": None if request is None else request_name(request, row["incarnation"]),
        "tenant": row["tenant"],
        "other_requests": row["other_requests"],
        "other_tenants": row["other_tenants"],
        "pool": row["pool"],
        **in_ranges(row["pages"], row["gens"]),
        "seqs": [s["seq"] for s in seqs if s["seq"] is not None],
        "events": [f"{s['source']}:{s['seq']}" for s in seqs if s["seq"] is not None],
        "why": row["why"],
    }
    if row["engine"] is not None:
        told["engine"] = row["engine"]
    if row["missing"] is not None:
        told["missing"] = row["missing"]
    return told
