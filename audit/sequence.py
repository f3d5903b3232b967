"""The events of a store in replay order, kept between audits so that the next one reads only what is new.

A directory of Parquet parts, each a stretch of time: the event columns, and what `kvwitness.audit.provenance.order`
adds. Events that come late, for a time that has been dealt with, make the parts from there on void; they are put in
order again.
Everything here can be built anew from the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence as Sequence_
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise, takewhile
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kvwitness.audit.provenance.order import clock_statements, ordered
from kvwitness.audit.provenance.pools import pool_use
from kvwitness.audit.rules.model import LISTED_APART
from kvwitness.audit.store import Snapshot, Store
from kvwitness.audit.trace import EVENT_SCHEMA

WHOLE_ROWS = 3_000_000
"""Up to so many new events are put in order at once, which is exact whatever the clocks did."""

PART_ROWS = 1_000_000
"""Beyond that, about so many at a time, cut where corrected clocks say."""

SLACK_NS = 5_000_000_000
"""New events that are less than this younger than a finished part still re-open it."""

_STATE = "sequence.json"
_ADDED = ("ev", "ref_ns", "unc_ns", "site")


@dataclass(frozen=True)
class Part:
    """One stretch of the sequence."""

    file: str
    rows: int
    first_ev: int
    max_ns: int
    """The highest reference time in it."""
    page_events: int
    """Pages that its events touch."""


@dataclass(frozen=True)
class Sequence:
    """The parts in order; those from index `fresh` on are new since the last audit."""

    directory: Path
    parts: tuple[Part, ...]
    fresh: int
    held: pl.DataFrame | None = None
    """The events of the last part, where that is the only fresh one and just went through memory."""

    def path(self, part: Part) -> Path:
        """Where a part lies."""
        return self.directory / part.file

    def scan(self) -> pl.LazyFrame:
        """All events, lazily, in replay order; page lists of the kinds in `LISTED_APART` are null."""
        return pl.scan_parquet([self.path(p) for p in self.parts], glob=False, hive_partitioning=False)

    def scan_pages(self) -> pl.LazyFrame:
        """All events with all their page lists."""
        lists = pl.scan_parquet([lists_of(self.path(p)) for p in self.parts], glob=False, hive_partitioning=False)
        return _with_lists(self.scan(), lists)

    def read(self, part: Part, columns: list[str]) -> pl.DataFrame:
        """The events of one part with all their page lists."""
        if self.held is not None and part is self.parts[-1]:
            return self.held.select(columns)
        path = self.path(part)
        return (
            _with_lists(pl.scan_parquet(path, glob=False), pl.scan_parquet(lists_of(path), glob=False))
            .select(columns)
            .collect()
        )

    def use(self) -> pl.DataFrame:
        """`pool_use` of the whole sequence."""
        return pl.concat([pl.read_parquet(use_of(self.path(p)), glob=False) for p in self.parts])

    @property
    def page_events(self) -> int:
        """Pages that all events touch."""
        return sum(p.page_events for p in self.parts)

    @property
    def rows(self) -> int:
        """Number of events."""
        return sum(p.rows for p in self.parts)


def lists_of(part: Path) -> Path:
    """Where the page lists of a part lie: `ev`, `pages`."""
    return part.with_suffix(".lists.parquet")


def use_of(part: Path) -> Path:
    """Where `pool_use` of a part lies."""
    return part.with_suffix(".use.parquet")


def _with_lists(events: pl.LazyFrame, lists: pl.LazyFrame) -> pl.LazyFrame:
    joined = events.join(lists.rename({"pages": "_listed"}), on="ev", how="left", maintain_order="left")
    return joined.with_columns(pages=pl.coalesce("_listed", "pages")).drop("_listed")


def bring_up_to_date(store: Store, directory: Path) -> Sequence:
    """Add what came into the store since the last call; one process at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    marks, parts = _load(directory)
    snapshot = store.snapshot()
    new = snapshot.events(EVENT_SCHEMA.names, since=marks or None)
    arrived = new.group_by("source").agg(pl.len().cast(pl.Int64), first=pl.col("time_ns").min()).collect()
    count = int(arrived["len"].sum())
    if not count:
        return Sequence(directory, tuple(parts), len(parts)) if parts else _first(directory, new, snapshot.marks())
    kept, clocks = _still_good(Sequence(directory, tuple(parts), 0), arrived, clock_statements(new).collect())
    again = parts[len(kept) :]
    if again:
        void = Sequence(directory, tuple(again), 0).scan_pages().select(EVENT_SCHEMA.names)
        new = pl.concat([void, new], how="vertical_relaxed")
        count += sum(p.rows for p in again)
    made = list(kept)
    held = None
    pending: list[Future[None]] = []
    with ThreadPoolExecutor(1) as disk:
        for frame in _stretches(new, count, snapshot if not marks else None):
            part, held = _write(directory, frame, made, clocks, disk, pending)
            made.append(part)
    for written in pending:
        written.result()
    _save(directory, snapshot.marks(), made)
    for name in {p.file for p in again} - {p.file for p in made}:
        for path in _files(directory / name):
            path.unlink(missing_ok=True)
    return Sequence(directory, tuple(made), len(kept), held if len(made) == len(kept) + 1 else None)


def marks(directory: Path) -> dict[str, int]:
    """ingest -> highest `ingest_row` in the sequence that is kept in a directory."""
    return _load(directory)[0]


def _still_good(done: Sequence, arrived: pl.DataFrame, said: pl.DataFrame) -> tuple[list[Part], pl.DataFrame]:
    """The parts that new events leave as they are, and what all events say of clocks.

    `arrived` (source, first) is when each source's new events begin, `said` what they say of clocks.
    """
    if not done.parts:
        return [], said
    known = clock_statements(done.scan()).collect()
    clocks = pl.concat([known, said])
    if _newly_told(done, known, said):
        return [], clocks
    ahead = clocks.group_by(site="engine").agg(offset_ns=(pl.col("offset_s").fill_null(0.0).max() * 1e9).cast(pl.Int64))
    at = arrived.with_columns(site=pl.col("source").fill_null("").str.split("/").list.first())
    first = (
        at.join(ahead, on="site", how="left").select(pl.col("first") - pl.col("offset_ns").fill_null(0)).min().item()
    )
    return list(takewhile(lambda part: part.max_ns < first - SLACK_NS, done.parts)), clocks


def _newly_told(done: Sequence, known: pl.DataFrame, said: pl.DataFrame) -> bool:
    """Whether a source has its first word on its clock only now: it counts for all that it had said before."""
    first = pl.col("time_ns").min()
    begins = said.group_by("engine").agg(first).join(known.group_by("engine").agg(known=first), on="engine", how="left")
    told = begins.filter(pl.col("known").is_null() | (pl.col("time_ns") < pl.col("known")))["engine"].to_list()
    return bool(told) and not done.scan().filter(pl.col("site").is_in(told)).head(1).collect().is_empty()


def _first(directory: Path, empty: pl.LazyFrame, marks: dict[str, int]) -> Sequence:
    """An empty store still has its columns."""
    pending: list[Future[None]] = []
    with ThreadPoolExecutor(1) as disk:
        part, _ = _write(directory, empty.collect(), [], None, disk, pending)
    pending[0].result()
    _save(directory, marks, [part])
    return Sequence(directory, (part,), 0)


def _stretches(new: pl.LazyFrame, count: int, whole: Snapshot | None) -> Sequence_[pl.LazyFrame | pl.DataFrame]:
    """The new events cut by time into frames that fit into memory; `whole` when they are all of a snapshot."""
    if count <= WHOLE_ROWS and whole is not None:
        return [_all_of(whole)]
    if count <= WHOLE_ROWS:
        return [new.collect()]
    clocks = (
        new.filter(pl.col("event") == "engine.clock")
        .group_by("engine")
        .agg((pl.col("offset_s").last() * 1e9).cast(pl.Int64))
        .collect()
    )
    offsets = dict(clocks.drop_nulls().iter_rows())
    site = pl.col("source").str.split("/").list.first()
    at = pl.col("time_ns") - site.replace_strict(offsets, default=0, return_dtype=pl.Int64)
    grain = 1_000_000_000
    per_second = new.select(second=at // grain).group_by("second").len().sort("second").collect()
    cuts, rows = [], 0
    for second, n in per_second.iter_rows():
        if rows and rows + n > PART_ROWS:
            cuts.append(second * grain)
            rows = 0
        rows += n
    bounds = [None, *cuts, None]
    frames: list[pl.LazyFrame | pl.DataFrame] = []
    for low, high in pairwise(bounds):
        frame = new
        if low is not None:
            frame = frame.filter(at >= low)
        if high is not None:
            frame = frame.filter(at < high)
        frames.append(frame)
    return frames


def _all_of(snapshot: Snapshot) -> pl.DataFrame:
    """Every event of a snapshot, read by Arrow, which is twice as quick on long page lists."""
    paths = [snapshot.path(name) for name in snapshot.names]
    tables = [pq.read_table(path, columns=EVENT_SCHEMA.names, partitioning=None) for path in paths]
    frame = pl.from_arrow(pa.concat_tables(tables) if tables else EVENT_SCHEMA.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame


def _write(
    directory: Path,
    events: pl.LazyFrame | pl.DataFrame,
    earlier: list[Part],
    clocks: pl.DataFrame | None,
    disk: ThreadPoolExecutor,
    pending: list[Future[None]],
) -> tuple[Part, pl.DataFrame]:
    """Put one stretch in order and keep it; the disk may still be busy with it afterwards."""
    first = earlier[-1].first_ev + earlier[-1].rows if earlier else 0
    frame = ordered(events.collect() if isinstance(events, pl.LazyFrame) else events, first, clocks)
    highest = frame["ref_ns"].max()
    assert highest is None or isinstance(highest, int)
    name = f"part-{first:012d}-{os.urandom(4).hex()}.parquet"
    apart = frame["event"].is_in(list(LISTED_APART))
    _keep(use_of(directory / name), pool_use(frame))
    pending.append(disk.submit(_keep_events, directory / name, frame, apart))
    touched = int(frame["pages"].list.len().cast(pl.Int64).sum() or 0)
    return Part(name, len(frame), first, 0 if highest is None else highest, touched), frame


def _keep_events(path: Path, frame: pl.DataFrame, apart: pl.Series) -> None:
    _keep(lists_of(path), frame.filter(apart).select("ev", "pages"))
    _keep(path, frame.with_columns(pages=pl.when(~apart).then("pages")))


def _keep(path: Path, frame: pl.DataFrame) -> None:
    staged = path.with_name("." + path.name)
    frame.write_parquet(staged, compression="lz4", row_group_size=131_072, statistics=True)
    staged.rename(path)


def _files(part: Path) -> tuple[Path, ...]:
    return part, lists_of(part), use_of(part)


def _load(directory: Path) -> tuple[dict[str, int], list[Part]]:
    try:
        state = json.loads((directory / _STATE).read_bytes())
        parts = [Part(**part) for part in state["parts"]]
    except (OSError, ValueError, TypeError, KeyError):
        return {}, []
    if not all(f.exists() for p in parts for f in _files(directory / p.file)):
        return {}, []
    return state["marks"], parts


def _save(directory: Path, marks: dict[str, int], parts: list[Part]) -> None:
    staged = directory / f".{_STATE}"
    staged.write_text(json.dumps({"marks": marks, "parts": [asdict(p) for p in parts]}))
    staged.rename(directory / _STATE)
