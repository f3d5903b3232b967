"""Traces as frames, pieces of them in a store, and what an audit said in a form that can be compared."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import polars as pl

from kvwitness.audit.pipeline import Ground, Judgement
from kvwitness.audit.provenance.encode import COLUMNS, Lists
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.provenance.pools import pool_use
from kvwitness.audit.provenance.replay import Replay
from kvwitness.audit.store import Store
from kvwitness.audit.trace import load_trace

CASES = Path(__file__).parents[1] / "cases"

Event = dict[str, Any]


def frame_of(events: Iterable[Event] | Path) -> pl.DataFrame:
    """Events as the reader of traces gives them; fails on one that it does not understand."""
    source = events if isinstance(events, Path) else io.BytesIO("\n".join(map(json.dumps, events)).encode())
    table, told = load_trace(source)
    assert told.bad_total == 0, told.bad
    return cast(pl.DataFrame, pl.from_arrow(table))


def ground_of(frame: pl.DataFrame) -> Ground:
    """What an audit derives from events in replay order before it replays them."""
    lazy = frame.lazy()
    return Ground.of(lazy, lazy, pool_use(frame), {})


def replay_of(frame: pl.DataFrame, *, compiled: bool = False) -> Replay:
    """A replay that has seen nothing yet, for events in replay order."""
    return Replay(ground_of(frame).encoder, compiled=compiled)


def facts_of(frame: pl.DataFrame, *, compiled: bool = False) -> pl.DataFrame:
    """The facts of a whole trace, in the kernel's numbers."""
    frame = ordered(frame)
    replay = replay_of(frame, compiled=compiled)
    replay.feed(frame.select(COLUMNS), Lists.of_frame(frame))
    replay.orphans(cast(int, frame["ref_ns"].max()), len(frame) - 1)
    return replay.take_facts()


def add(store: Store, piece: pl.DataFrame, name: str) -> None:
    """Import a piece of a trace as a file of its own."""
    if len(piece):
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        assert store.import_batches(piece.to_arrow().to_batches(), sha256=sha256, name=name).added == len(piece)


def findings(judgement: Judgement) -> list[tuple[Any, ...]]:
    """What was found, of whom and where: nothing that depends on how events are numbered."""
    rows = []
    columns = (
        "rule",
        "verdict",
        "request",
        "incarnation",
        "engine",
        "pool",
        "pages",
        "other_requests",
        "other_tenants",
    )
    for row in judgement.findings.select(columns).iter_rows(named=True):
        rows.append(tuple(tuple(sorted(v)) if isinstance(v, list) else v for v in row.values()))
    return sorted(rows, key=repr)


def incidents(judgement: Judgement) -> dict[str, tuple[Any, ...]]:
    """Incident id -> its verdict, whom it befell and the number of its findings."""
    columns = judgement.incidents.select(
        "incident", "verdict", "request", "incarnation", "engine", "tenant", "findings"
    )
    return {row[0]: row[1:] for row in columns.iter_rows()}


def verdicts(judgement: Judgement) -> dict[tuple[str, int], str]:
    """(request, incarnation) -> verdict."""
    return {(row[0], row[1]): row[2] for row in judgement.requests.select("request", "incarnation", "verdict").rows()}
