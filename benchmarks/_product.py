"""The one place where the benchmarks know how the product replays and audits.

Everything else asks for `KernelReplay`, `audit_store` and `summary`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from kvwitness.audit import runs
from kvwitness.audit.provenance import encode
from kvwitness.audit.provenance.actors import Actors
from kvwitness.audit.provenance.encode import Encoded, Encoder
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.provenance.pools import pool_use, pools_of
from kvwitness.audit.provenance.replay import Replay
from kvwitness.audit.relations import requests
from kvwitness.audit.runs import AuditRun
from kvwitness.audit.store import Store


class KernelReplay:
    """The full shadow replay, step by step, so that each step can be timed alone."""

    def __init__(self, overview: Iterable[pa.RecordBatch]) -> None:
        """`overview`: what the replay must know before it begins, for the whole trace: pools, limits, clocks,
        requests received and finished, and of every pool at least one event of each kind that it sees.
        """
        events = ordered(pl.from_arrow(pa.Table.from_batches(overview)))
        actors = Actors(requests(events.lazy()))
        sources = events["source"].unique(maintain_order=True).to_list()
        self._encoder = Encoder(actors, pools_of(pool_use(events), events.lazy()), sources)
        self._replay = Replay(self._encoder)
        self._ev = 0

    def order(self, batch: pa.RecordBatch) -> pl.DataFrame:
        """Events in replay order, cut down to what the replay looks at."""
        frame = ordered(pl.from_arrow(batch), self._ev).select([*encode.COLUMNS, "pages"])
        self._ev += len(frame)
        return frame

    def encode(self, events: pl.DataFrame) -> Encoded:
        """Integers in columns and flat page lists."""
        return self._encoder.encode(events, encode.Lists.of_frame(events))

    def replay(self, batch: Encoded) -> None:
        """The kernel itself."""
        self._replay.replay(batch)

    def suspects(self) -> set[int]:
        """`ev` of every event at which something was not plainly sound."""
        return set(self._replay.take_facts()["ev"])


@dataclass(frozen=True)
class Audited:
    """What an audit said, as far as the benchmarks check it."""

    incidents: dict[str, int]
    """Verdict -> number of incidents."""
    findings: dict[str, int]
    """Rule -> number of findings."""
    proofs: set[tuple[str, str, int]]
    """(request, source, seq) of every event that proves a finding."""
    requests: set[str]
    """Requests with a finding."""


def audit_store(path: Path) -> AuditRun:
    """The whole audit of a store, from its segments on disk to results kept in it."""
    return runs.audit_store(Store.open(path))


def summary(run: AuditRun) -> Audited:
    """What `run` found; not part of what is measured."""
    judgement = run.judgement
    named = judgement.findings.filter(pl.col("request").is_not_null())
    proofs = named.select("request", "seqs").explode("seqs").drop_nulls().unnest("seqs")
    return Audited(
        incidents=_tally(judgement.incidents["verdict"]),
        findings=_tally(judgement.findings["rule"]),
        proofs=set(proofs.select("request", "source", "seq").iter_rows()),
        requests=set(named["request"]),
    )


def _tally(column: pl.Series) -> dict[str, int]:
    return dict(column.value_counts(sort=True).iter_rows())
