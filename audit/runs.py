"""Auditing a store, and keeping what was found in it.

Between audits the store keeps the events in replay order (`kvwitness.audit.sequence`), the replay's state after each
stretch of them and the facts found there, so that the next audit replays only what is new.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import polars as pl
import pyarrow as pa

from kvwitness import __version__
from kvwitness.audit import observed, summaries
from kvwitness.audit.inforce import Parameters, in_force, put_in_force
from kvwitness.audit.pipeline import Ground, Judgement, Progress, _silent, conclude
from kvwitness.audit.provenance import checkpoint
from kvwitness.audit.provenance.choice import prepare_for
from kvwitness.audit.provenance.encode import COLUMNS
from kvwitness.audit.provenance.replay import Replay
from kvwitness.audit.rules.model import Context
from kvwitness.audit.sequence import Part, Sequence, bring_up_to_date, marks
from kvwitness.audit.store import ImportRecord, Store
from kvwitness.audit.store.durable import FileLock
from kvwitness.audit.store.intake import ROWS_PER_SEGMENT
from kvwitness.audit.unread import losses_of

STATE_EVERY = 8
"""A state is as large as all pools together, so that not every part of a long record keeps one."""


@dataclass(frozen=True)
class AuditRun:
    """One run over a store."""

    run_id: str
    judgement: Judgement
    context: Context
    parameters: Parameters
    """What its rules were judged by."""
    seconds: float


def audit_store(
    store: Store,
    *,
    parameters: Parameters | None = None,
    progress: Progress = _silent,
) -> AuditRun:
    """Judge everything in a store and keep the result in it, whole or not at all.

    Result tables: `findings`, `incidents`, `request_verdicts`, `undecided`, `audit_run` (one row: what was looked at),
    `rule_params` (what the rules were judged by), and those of `kvwitness.audit.observed` and
    `kvwitness.audit.summaries`. Another audit of the same store is waited for. `parameters` are put in force for this
    and the following audits; None: those that are in force (`kvwitness.audit.inforce`).
    """
    started = time.time_ns()
    directory = store.checkpoint_dir / "audit"
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / "lock"):
        if parameters is not None:
            put_in_force(store, parameters)
        judged_by = in_force(store)
        progress("ordering events", 0.0)
        with store.reading():
            sequence = bring_up_to_date(store, directory, prepare_for)
        told = (sequence.use(), judged_by.overrides, refused(store), sequence.acts())
        ground = Ground.of(sequence.scan(), sequence.scan_pages(), *told)
        facts, page_events = _replayed(sequence, ground, progress)
        context = ground.context(facts)
        judgement = conclude(context, page_events, sequence.rows, progress=progress)
        seen = observed.tables(context, marks(directory)) | summaries.tables(context, judgement.requests)
    run_id = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started / 1e9)) + f"-{started % 1_000_000_000:09d}"
    seconds = (time.time_ns() - started) / 1e9
    store.put_result(run_id, tables(judgement, run_id, started) | {"rule_params": judged_by.table()} | seen)
    return AuditRun(run_id, judgement, context, judged_by, seconds)


def refused(store: Store) -> pl.DataFrame | None:
    """What was lost in lines that imports turned away (see `kvwitness.audit.unread`). None when there were none."""
    found = []
    for record in store.imports():
        lines = [(line["source"], line["seq"], line["after_events"]) for line in record.report.get("unread", [])]
        if lines and (lost := losses_of(lines, _of_import(store, record))) is not None:
            found.append(lost)
    return pl.concat(found) if found else None


def _of_import(store: Store, record: ImportRecord) -> pl.DataFrame:
    """The events of one import in the order of its file, with their places in it.

    Retention may have removed some; a file of a single segment still shows where the others were.
    """
    own = store.events(["source", "seq", "time_ns", "ingest", "ingest_row"])
    frame = own.filter(pl.col("ingest") == record.ingest).sort("ingest_row").collect()
    segments, row = frame["ingest_row"] // ROWS_PER_SEGMENT, pl.col("ingest_row") % ROWS_PER_SEGMENT
    return frame.with_columns(row=row if segments.n_unique() == 1 else pl.int_range(pl.len()))


def _state(sequence: Sequence, part: Part) -> Path:
    return sequence.path(part).with_suffix(".state.npz")


def _facts(sequence: Sequence, part: Part) -> Path:
    return sequence.path(part).with_suffix(".facts.parquet")


def _replayed(sequence: Sequence, ground: Ground, progress: Progress) -> tuple[pl.DataFrame, int]:
    """Facts of the whole sequence, and how many pages its events touched; replays from the last useful state on."""
    replay, known = _resumed(sequence, ground, sequence.page_events)
    start = len(known)
    for number, part in enumerate(sequence.parts[start:]):
        progress("replaying page histories", number / max(1, len(sequence.parts) - start))
        replay.feed(sequence.read(part, COLUMNS), sequence.lists(part))
        facts = replay.take_facts()
        facts.write_parquet(_facts(sequence, part))
        if _state_kept(sequence, start + number):
            checkpoint.save(replay, _state(sequence, part))
        known.append(facts)
    pa.default_memory_pool().release_unused()  # else it keeps what the parts' page lists took
    replay.orphans(ground.horizon_ns, max(0, sequence.rows - 1))
    _tidy(sequence)
    return pl.concat([*known, replay.take_facts()]), replay.page_events


def _resumed(sequence: Sequence, ground: Ground, touched: int) -> tuple[Replay, list[pl.DataFrame]]:
    """A replay, and the facts of the parts that it has seen. A state that cannot be read is as good as none."""
    for number in range(min(sequence.fresh, len(sequence.parts)), 0, -1):
        done = sequence.parts[:number]
        if _state(sequence, done[-1]).exists() and all(_facts(sequence, p).exists() for p in done):
            replay = ground.replay(touched)
            try:
                known = [pl.read_parquet(_facts(sequence, part), glob=False) for part in done]
                if checkpoint.restore(replay, _state(sequence, done[-1])):
                    return replay, known
            except (OSError, EOFError, ValueError, KeyError, BadZipFile, pl.exceptions.PolarsError):
                continue
    return ground.replay(touched), []


def _state_kept(sequence: Sequence, number: int) -> bool:
    """Whether the replay's state after that part stays: after the last two, which late events may void, and some."""
    return number >= len(sequence.parts) - 2 or number % STATE_EVERY == STATE_EVERY - 1


def _tidy(sequence: Sequence) -> None:
    """Remove states and facts of parts that are no more, and states that are not worth their room."""
    wanted = {p.file.removesuffix(".parquet") for p in sequence.parts}
    for path in sequence.directory.glob("part-*"):
        if path.name.split(".", 1)[0] not in wanted:
            path.unlink(missing_ok=True)
    for number, part in enumerate(sequence.parts):
        if not _state_kept(sequence, number):
            _state(sequence, part).unlink(missing_ok=True)


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
