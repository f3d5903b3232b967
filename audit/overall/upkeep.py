"""The store and its audits as whoever runs them wants to see them: losses, runs, imports, sizes."""

from __future__ import annotations

from typing import Any

import polars as pl

from kvwitness.audit.store import Store
from kvwitness.audit.wording import moment

_REASONS = {
    "hole": "numbers are missing",
    "declared": "the source said so",
    "midlife": "the source had a life before the record",
    "unread": "lines could not be read",
    "doubled": "numbers were used twice",
}


def losses(gaps: pl.DataFrame) -> pl.DataFrame:
    """The result table `gaps` with reasons in words, the latest first."""
    told = gaps.with_columns(reason=pl.col("reason").replace(_REASONS))
    wanted = ["source", "reason", "dropped", "from_seq", "to_seq", "before_ns", "after_ns"]
    return told.select(wanted).sort("after_ns", descending=True, nulls_last=False)


def runs(store: Store) -> pl.DataFrame:
    """The kept audits, the newest first: run, created_ns, findings, incidents, requests."""
    found = [
        {
            "run": run.run_id,
            "created_ns": run.created_ns,
            "findings": run.tables.get("findings"),
            "incidents": run.tables.get("incidents"),
            "requests": run.tables.get("request_verdicts"),
        }
        for run in reversed(store.result_runs())
    ]
    return pl.DataFrame(found, infer_schema_length=None)


def imports(store: Store) -> pl.DataFrame:
    """The imported files, the newest first: file, committed_ns, events, left out (lines), why."""
    found = []
    for record in reversed(store.imports()):
        bad = record.report.get("bad_by_reason") or {}
        found.append(
            {
                "file": record.name,
                "committed_ns": record.committed_ns,
                "events": record.rows,
                "left out": sum(bad.values()),
                "why": "; ".join(f"{reason} ({count:,})" for reason, count in sorted(bad.items())),
                "content dropped": sum((record.report.get("dropped_content") or {}).values()),
            }
        )
    return pl.DataFrame(found, infer_schema_length=None)


def sizes(store: Store) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Facts about the store as (fact, value), and what retention removed."""
    info = store.info()
    span = "none"
    if info["min_time_ns"] is not None:
        span = f"{moment(info['min_time_ns'])} to {moment(info['max_time_ns'])}"
    segments = ", ".join(f"{count:,} {kind}" for kind, count in sorted(info["segments"].items())) or "none"
    quarantined = ", ".join(f"{q['name']}: {q['reason']}" for q in info["quarantined"]) or "none"
    facts = {
        "directory": info["path"],
        "events": f"{info['rows']:,}",
        "bytes": f"{info['bytes']:,}",
        "bytes for each event": str(info["bytes_per_row"] or "none"),
        "files of events": segments,
        "times": span,
        "events whose clock went back": f"{info['times_backwards']:,}",
        "events dated after they were written": f"{info['times_in_future']:,}",
        "tenants are kept": info["tenants"],
        "damaged files moved aside": quarantined,
        "old files waiting for removal": f"{info['waiting_for_removal']:,}",
    }
    return [{"fact": name, "value": value} for name, value in facts.items()], info["removals"]
