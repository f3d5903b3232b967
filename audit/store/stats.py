"""What a segment's footer says about its rows, gathered while they are written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvwitness.audit.store.schema import INGEST, INGEST_ROW

FUTURE_TOLERANCE_NS = 5 * 60 * 1_000_000_000
"""A time that lies further than this after the moment of writing counts as `future`."""


@dataclass(frozen=True)
class Span:
    """How many rows one source (or one ingest) has in a segment, and their lowest and highest `seq` (or
    `ingest_row`).

    `first` and `last` are None where no row has a number.
    """

    rows: int
    first: int | None
    last: int | None

    def joined(self, other: Span) -> Span:
        """The span of both together."""
        firsts = [v for v in (self.first, other.first) if v is not None]
        lasts = [v for v in (self.last, other.last) if v is not None]
        return Span(self.rows + other.rows, min(firsts, default=None), max(lasts, default=None))


def join_spans(into: dict[str | None, Span], more: Mapping[str | None, Span]) -> None:
    """Add the spans of `more` to `into`."""
    for name, span in more.items():
        into[name] = into[name].joined(span) if name in into else span


@dataclass
class Stats:
    """Rows, times and numbers of a set of rows. Times in ns since the Unix epoch, as the sources told
    them."""

    rows: int = 0
    min_time_ns: int | None = None
    max_time_ns: int | None = None
    sources: dict[str | None, Span] = field(default_factory=dict)
    """source (None: rows without one) -> span of `seq`."""
    ingests: dict[str | None, Span] = field(default_factory=dict)
    """ingest -> span of `ingest_row`."""
    backwards: int = 0
    """Rows whose time lies before that of the row their source sent just before."""
    future: int = 0
    """Rows whose time lay in the future when they were written."""

    def to_json(self) -> dict[str, Any]:
        """A form that JSON can hold; see `from_json`."""
        return {
            "rows": self.rows,
            "min_time_ns": self.min_time_ns,
            "max_time_ns": self.max_time_ns,
            "sources": [[k, s.rows, s.first, s.last] for k, s in self.sources.items()],
            "ingests": [[k, s.rows, s.first, s.last] for k, s in self.ingests.items()],
            "backwards": self.backwards,
            "future": self.future,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Stats:
        """The reverse of `to_json`."""
        return cls(
            rows=data["rows"],
            min_time_ns=data["min_time_ns"],
            max_time_ns=data["max_time_ns"],
            sources={k: Span(n, a, b) for k, n, a, b in data["sources"]},
            ingests={k: Span(n, a, b) for k, n, a, b in data["ingests"]},
            backwards=data["backwards"],
            future=data["future"],
        )

    def add(self, other: Stats) -> None:
        """Take in the statistics of other rows."""
        self.rows += other.rows
        self.min_time_ns = _least(self.min_time_ns, other.min_time_ns)
        self.max_time_ns = _most(self.max_time_ns, other.max_time_ns)
        join_spans(self.sources, other.sources)
        join_spans(self.ingests, other.ingests)
        self.backwards += other.backwards
        self.future += other.future


class Clocks:
    """The last time each source told, so that a clock that goes backwards is noticed across flushes."""

    def __init__(self) -> None:
        self._last: dict[str | None, int] = {}

    def copy(self) -> Clocks:
        """The same memory, apart from this one."""
        other = Clocks()
        other._last = dict(self._last)
        return other

    def backwards(self, table: pa.Table) -> int:
        """How many rows are earlier than the row before them of the same source; remembers the last of
        each."""
        if not table.num_rows:
            return 0
        codes = pc.dictionary_encode(table.column("source"), null_encoding="encode").combine_chunks()
        index = codes.indices.to_numpy(zero_copy_only=False)
        times = table.column("time_ns").to_numpy()
        order = np.argsort(index, kind="stable")
        index, times = index[order], times[order]
        same = index[1:] == index[:-1]
        count = int(np.count_nonzero(same & (times[1:] < times[:-1])))
        starts = np.concatenate([[0], np.flatnonzero(~same) + 1])
        ends = np.concatenate([starts[1:], [len(index)]]) - 1
        names = codes.dictionary.to_pylist()
        for start, end in zip(starts, ends, strict=True):
            source = names[index[start]]
            if source in self._last and times[start] < self._last[source]:
                count += 1
            self._last[source] = int(times[end])
        return count


def measure(table: pa.Table, clocks: Clocks) -> Stats:
    """Statistics of rows that are being written now, in order of arrival."""
    stats = recount(table)
    stats.backwards = clocks.backwards(table)
    limit = time.time_ns() + FUTURE_TOLERANCE_NS
    stats.future = pc.sum(pc.greater(table.column("time_ns"), limit)).as_py() or 0
    return stats


def recount(table: pa.Table) -> Stats:
    """Statistics that the rows themselves prove (not the clock counts, which depend on when they were
    written)."""
    if not table.num_rows:
        return Stats()
    times = pc.min_max(table.column("time_ns")).as_py()
    return Stats(
        rows=table.num_rows,
        min_time_ns=times["min"],
        max_time_ns=times["max"],
        sources=_spans(table, "source", "seq"),
        ingests=_spans(table, INGEST, INGEST_ROW),
    )


def _spans(table: pa.Table, key: str, number: str) -> dict[str | None, Span]:
    grouped = (
        table.select([key, number])
        .group_by(key, use_threads=False)
        .aggregate([([], "count_all"), (number, "min"), (number, "max")])
    )
    rows = zip(
        *(grouped.column(c).to_pylist() for c in (key, "count_all", f"{number}_min", f"{number}_max")),
        strict=True,
    )
    return {name: Span(count, first, last) for name, count, first, last in rows}


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
