"""The events of a store in replay order, kept between audits so that the next one reads only what is new.

A directory of Parquet parts, each a stretch of time: the event columns, and what `kvwitness.audit.provenance.order`
adds. Events that come late, for a time that has been dealt with, make the parts from there on void; they are put in
order again.
Everything here can be built anew from the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise, takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvwitness.audit import acts
from kvwitness.audit.arrivals import TEXTS, Piece, new_pieces, opened, picked
from kvwitness.audit.provenance.arrow import column, numbers, texts
from kvwitness.audit.provenance.encode import Lists
from kvwitness.audit.provenance.order import BEGINS, IDS, KEYS, Order, clock_statements, replay_order
from kvwitness.audit.provenance.pools import joined_use, pool_use
from kvwitness.audit.rules.model import LISTED_APART
from kvwitness.audit.store import Store
from kvwitness.audit.store.schema import INGEST, INGEST_ROW
from kvwitness.audit.trace import EVENT_SCHEMA

I64 = npt.NDArray[np.int64]

WHOLE_ROWS = 3_000_000
"""Up to so many new events are put in order at once, which is exact whatever the clocks did."""

STRETCH_ROWS = 1_000_000
"""Beyond that, about so many at a time, cut where corrected clocks say."""

PART_ROWS = 1 << 18
"""A part has at most so many events."""

PART_PAGES = 1 << 23
"""A part's events touch about so many pages, all of which are in memory while it is replayed."""

SLACK_NS = 5_000_000_000
"""New events that are less than this younger than a finished part still re-open it."""

_CLOCKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "source": pl.String,
    "event": pl.String,
    "engine": pl.String,
    "time_ns": pl.Int64,
    "offset_s": pl.Float64,
    "uncertainty_s": pl.Float64,
}

_LISTS = pa.schema([("ev", pa.int64()), EVENT_SCHEMA.field("pages")])
_NO_EVENTS = EVENT_SCHEMA.empty_table()
_NEVER = np.iinfo(np.int64).max
_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **pl.DataFrame(_NO_EVENTS).schema,
    INGEST: pl.String,
    INGEST_ROW: pl.Int64,
    "ref_ns": pl.Int64,
    "unc_ns": pl.Int64,
    "site": pl.String,
    "ev": pl.Int64,
}
_ALWAYS = ["time_ns", "event", "source", "seq", "pages", "tok_first", "tok_end"]
"""Columns that a part has, whether or not there is a value in them."""

_STATE = "sequence.json"
_VERSION = 3
"""Of what a part holds; parts of another version are made anew. The second has the place of arrival of each event, the
third keeps texts as numbers into a dictionary throughout, and has acts."""


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

    def path(self, part: Part) -> Path:
        """Where a part lies."""
        return self.directory / part.file

    def scan(self) -> pl.LazyFrame:
        """All events, lazily, in replay order; page lists of the kinds in `LISTED_APART` are null."""
        return _scan([self.path(p) for p in self.parts])

    def scan_pages(self) -> pl.LazyFrame:
        """All events with all their page lists."""
        lists = pl.scan_ipc([lists_of(self.path(p)) for p in self.parts], glob=False, hive_partitioning=False)
        return self.scan().drop("pages").join(lists, on="ev", how="left", maintain_order="left")

    def read(self, part: Part, columns: list[str]) -> pa.Table:
        """Columns of the events of one part, as in `kvwitness.audit.provenance.arrow`: those that have no value may be
        absent; page lists of the kinds in `LISTED_APART` are null."""
        return _stored(self.path(part), columns)

    def lists(self, part: Part) -> Lists:
        """The page lists of one part."""
        table = _read_lists(self.path(part))
        return Lists.of(table["ev"].to_numpy(), table["pages"], part.first_ev, part.rows)

    def use(self) -> pl.DataFrame:
        """`pool_use` of the whole sequence."""
        return pl.concat([pl.read_parquet(use_of(self.path(p)), glob=False) for p in self.parts])

    def acts(self) -> pl.LazyFrame:
        """The acts of the whole sequence, lazily."""
        files = [acts_of(self.path(p)) for p in self.parts]
        return pl.scan_parquet(files, schema=acts.SCHEMA, glob=False)

    @property
    def page_events(self) -> int:
        """Pages that all events touch."""
        return sum(p.page_events for p in self.parts)

    @property
    def rows(self) -> int:
        """Number of events."""
        return sum(p.rows for p in self.parts)


def _scan(parts: list[Path]) -> pl.LazyFrame:
    """Parts below each other; a column that has no value in one is not kept there."""
    return pl.scan_parquet(parts, schema=_SCHEMA, missing_columns="insert", glob=False)


def _stored(part: Path, columns: list[str]) -> pa.Table:
    """Those of the columns that a part has."""
    with opened(part) as file:
        kept = set(file.schema_arrow.names)
        return file.read(columns=[name for name in columns if name in kept], use_threads=False)


def lists_of(part: Path) -> Path:
    """Where the page lists of a part lie: `ev`, `pages`, in the order in which the events arrived.

    In Arrow's own form: numbers without order gain nothing from encodings, and Parquet takes three times as long.
    """
    return part.with_suffix(".lists.arrow")


def _read_lists(part: Path) -> pa.Table:
    with pa.memory_map(str(lists_of(part))) as file:
        return pa.ipc.open_file(file).read_all()


def use_of(part: Path) -> Path:
    """Where `pool_use` of a part lies."""
    return part.with_suffix(".use.parquet")


def acts_of(part: Path) -> Path:
    """Where the acts of a part lie (see `kvwitness.audit.acts`)."""
    return part.with_suffix(".acts.parquet")


def bring_up_to_date(store: Store, directory: Path, coming: Callable[[int], None] = lambda pages: None) -> Sequence:
    """Add what came into the store since the last call; one process at a time.

    `coming` is told early about how many pages the new parts will touch.
    """
    directory.mkdir(parents=True, exist_ok=True)
    marks, parts = _load(directory)
    snapshot = store.snapshot()
    pieces = new_pieces(snapshot, marks)
    if not pieces and parts:
        return Sequence(directory, tuple(parts), len(parts))
    kept, clocks = _still_good(Sequence(directory, tuple(parts), 0), *_heralds(pieces))
    again = parts[len(kept) :]
    pieces = [*(_void(directory / part.file, part) for part in again), *pieces]
    coming(sum(piece.pages for piece in pieces))
    made = list(kept)
    for rows, order in _stretches(pieces, clocks):
        _add_parts(directory, picked(pieces, rows), order, made)
    if not made:
        made.append(_Unfinished(directory, 0, 0).finished)
    _save(directory, snapshot.marks(), made)
    for name in {p.file for p in again} - {p.file for p in made}:
        for path in _files(directory / name):
            path.unlink(missing_ok=True)
    return Sequence(directory, tuple(made), len(kept))


def _heralds(pieces: list[Piece]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """When each source's new events begin (source, first), and what they say of clocks."""
    arrived = [pl.DataFrame(schema={"source": pl.String, "first": pl.Int64})]
    said = [clock_statements(pl.LazyFrame(schema=_CLOCKS)).collect()]
    for piece in pieces:
        table = piece.read(["source", "event", "time_ns"])
        source = texts(table, "source")
        first = np.full(len(source.names), _NEVER)
        np.minimum.at(first, source.codes, numbers(table, "time_ns"))
        seen = np.flatnonzero(first < _NEVER)
        arrived.append(pl.DataFrame({"source": source.named(seen), "first": first[seen]}, schema=arrived[0].schema))
        speaking = np.flatnonzero(texts(table, "event").among(["engine.clock"]))
        if len(speaking):
            told = pl.DataFrame(piece.some(speaking).read(list(_CLOCKS)))
            typed = told.lazy().select(pl.col(name).cast(kind) for name, kind in _CLOCKS.items())
            said.append(clock_statements(typed).collect())
    return pl.concat(arrived).group_by("source").agg(pl.col("first").min()), pl.concat(said)


def _void(path: Path, part: Part) -> Piece:
    """A part that is put in order again."""

    def read(columns: list[str]) -> pa.Table:
        table = _stored(path, [*columns, "ev"])
        if "pages" in columns:
            lists = _read_lists(path)
            place = pc.index_in(table["ev"], value_set=lists["ev"].combine_chunks())
            pages = lists["pages"].combine_chunks().take(place.combine_chunks())
            at = table.schema.get_field_index("pages")
            table = table.set_column(at, "pages", pages.cast(table.schema.field(at).type))
        for name in columns:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows))
        return table.select(columns)

    kept = frozenset(pq.read_schema(path).names)
    return Piece(part.rows, part.page_events, kept, read)


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


def _stretches(pieces: list[Piece], clocks: pl.DataFrame) -> Iterator[tuple[I64, Order]]:
    """Rows (of all pieces below each other) that are put in order together, and their order."""
    count = sum(piece.rows for piece in pieces)
    if not count:
        return
    if count <= WHOLE_ROWS:
        yield np.arange(count), replay_order(_keys(pieces), clocks)
        return
    at = np.concatenate([_corrected(piece, clocks) for piece in pieces])
    for low, high in _cuts(at):
        rows = np.flatnonzero((at >= low) & (at < high))
        yield rows, replay_order(_keys(picked(pieces, rows)), clocks)


def _keys(pieces: list[Piece]) -> pa.Table:
    """What decides the order of pieces below each other: without the ids of transfers where there are none."""
    plain = [name for name in KEYS if name not in IDS]
    tables = [piece.read(plain) for piece in pieces]
    if any(texts(table, "event").among(BEGINS).any() for table in tables):
        tables = [piece.read(KEYS) for piece in pieces]
    return _together(tables)


def _together(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables below each other. Columns that one of them lacks are null there."""
    given = list(tables)
    return pa.concat_tables(given, promote_options="default") if len(given) != 1 else given[0]


def _corrected(piece: Piece, clocks: pl.DataFrame) -> I64:
    """Times less the last offset that each engine stated."""
    offsets = clocks.group_by("engine", maintain_order=True).agg((pl.col("offset_s").last() * 1e9).cast(pl.Int64))
    known = dict(offsets.drop_nulls().iter_rows())
    table = piece.read(["source", "time_ns"])
    source = texts(table, "source")
    by_source = {name: known.get(name.split("/")[0], 0) for name in source.names if name is not None}
    return numbers(table, "time_ns") - source.mapped(by_source, 0)


def _cuts(at: I64) -> list[tuple[int, int]]:
    """Stretches of time of about `STRETCH_ROWS` events each, in whole seconds."""
    grain = 1_000_000_000
    seconds, counts = np.unique(at // grain, return_counts=True)
    edges, rows = [int(seconds[0])], 0
    for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
        if rows and rows + count > STRETCH_ROWS:
            edges.append(second)
            rows = 0
        rows += count
    edges.append(int(seconds[-1]) + 1)
    return [(low * grain, high * grain) for low, high in pairwise(edges)]


def _add_parts(directory: Path, pieces: list[Piece], order: Order, made: list[Part]) -> None:
    """Write a stretch, as parts that are not too large to replay. Each piece is read once."""
    first = made[-1].first_ev + made[-1].rows if made else 0
    in_order = order.rows
    width = np.concatenate([np.full(p.rows, p.pages / p.rows) for p in pieces])
    full = np.maximum(np.cumsum(width[in_order]) // PART_PAGES, np.arange(len(in_order)) // PART_ROWS)
    edges = np.array([0, *(np.flatnonzero(np.diff(full)) + 1).tolist(), len(in_order)])
    parts = [_Unfinished(directory, first + low, high - low) for low, high in pairwise(edges.tolist())]
    start = 0
    for piece in pieces:
        own = slice(start, start + piece.rows)
        wanted = [name for name in EVENT_SCHEMA.names if name in piece.filled or name in _ALWAYS]
        table = piece.read([*wanted, *(name for name in (INGEST, INGEST_ROW) if name in piece.filled)])
        placed_at = Order(order.rank[own], order.ref_ns[own], order.unc_ns[own])
        part_of = np.searchsorted(edges, placed_at.rank, side="right") - 1
        for number in np.unique(part_of).tolist():
            rows = np.flatnonzero(part_of == number)
            parts[number].add(_some(table, rows), placed_at.of(rows, -first))
        start += piece.rows
        del table
    pa.default_memory_pool().release_unused()  # else it keeps several times what a piece takes
    made.extend(part.finished for part in parts)


def _some(table: pa.Table, rows: I64) -> pa.Table:
    """Rows of a table, which ascend; without copying where they follow each other."""
    if int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return table.take(rows)


class _Unfinished:
    """A part that is being written; it is finished with the last of its rows."""

    def __init__(self, directory: Path, first: int, rows: int) -> None:
        self._path = directory / f"part-{first:012d}-{os.urandom(4).hex()}.parquet"
        self._first, self._rows, self._missing = first, rows, rows
        self._tables: list[pa.Table] = []
        self._use: list[pl.DataFrame] = []
        self._acts: list[pl.DataFrame] = []
        self._orders, self._touched = [Order.of_nothing()], 0
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._lists = pa.ipc.new_file(str(staged(lists_of(self._path))), _LISTS, options=options)
        if not rows:
            self._finish()

    def add(self, table: pa.Table, order: Order) -> None:
        """Some of its events; `order.rank` is their `ev`."""
        pages = table["pages"]
        self._lists.write_table(pa.table([pa.array(order.rank), pages], schema=_LISTS))
        self._use.append(pool_use(table))
        self._acts.append(acts.counted(table, order.rank, order.ref_ns))
        self._touched += pc.sum(pc.list_value_length(pages)).as_py() or 0
        few = _only(pages, ~texts(table, "event").among(LISTED_APART))
        self._tables.append(table.set_column(table.schema.get_field_index("pages"), "pages", few))
        self._orders.append(order)
        self._missing -= len(table)
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        self._lists.close()
        staged(lists_of(self._path)).rename(lists_of(self._path))
        done = pl.concat([pl.DataFrame(schema=acts.SCHEMA), *self._acts])
        for path, frame in ((use_of(self._path), joined_use(self._use)), (acts_of(self._path), done)):
            frame.write_parquet(staged(path))
            staged(path).rename(path)
        order = Order.joined(self._orders)
        _keep(self._path, _placed(_together(self._tables or [_NO_EVENTS]), order))
        highest = int(order.ref_ns.max(initial=0))
        self.finished = Part(self._path.name, self._rows, self._first, highest, self._touched)
        del self._tables, self._orders


def _only(lists: pa.ChunkedArray, where: npt.NDArray[np.bool_]) -> pa.Array:
    """The lists of some rows, null in all others."""
    kept = np.flatnonzero(where)
    some = lists.filter(pa.array(where))
    if some.null_count == len(kept):
        return pa.nulls(len(lists), lists.type)
    place = np.zeros(len(where), np.int64)
    place[kept] = np.arange(len(kept))
    return some.combine_chunks().take(pa.array(place, mask=~where))


def _placed(table: pa.Table, order: Order) -> pa.Table:
    """Events with what the order adds to each, sorted by `ev`; `order.rank` is their `ev`."""
    source = texts(table, "source")
    names = [name or "" for name in source.names]
    added = {
        "source": _encoded(source.codes, names),
        "site": _encoded(source.codes, [name.split("/")[0] for name in names]),
        "ref_ns": pa.array(order.ref_ns),
        "unc_ns": pa.array(np.nan_to_num(order.unc_ns).astype(np.int64), mask=np.isnan(order.unc_ns)),
        "ev": pa.array(order.rank),
    }
    filled = [name for name in table.column_names if name in _ALWAYS or column(table, name) is not None]
    table = table.select(filled).drop_columns("source").unify_dictionaries()
    for name, values in added.items():
        table = table.append_column(name, values)
    if np.all(order.rank[1:] > order.rank[:-1]):
        return table
    return table.combine_chunks().take(pa.array(np.argsort(order.rank)))


def _encoded(codes: npt.NDArray[np.int32], names: list[str]) -> pa.DictionaryArray:
    """Texts from numbers into `names`, which may repeat themselves."""
    once = {name: number for number, name in enumerate(dict.fromkeys(names))}
    places = np.array([once[name] for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places[codes]), pa.array(list(once), pa.string()))


def staged(path: Path) -> Path:
    """Where a file is written before it takes its name."""
    return path.with_name("." + path.name)


def _keep(path: Path, table: pa.Table) -> None:
    pq.write_table(
        table,
        staged(path),
        compression="lz4",
        row_group_size=131_072,
        use_dictionary=[name for name in table.column_names if name in TEXTS],
        store_schema=False,
    )
    staged(path).rename(path)


def _files(part: Path) -> tuple[Path, ...]:
    return part, lists_of(part), use_of(part), acts_of(part)


def _load(directory: Path) -> tuple[dict[str, int], list[Part]]:
    try:
        state = json.loads((directory / _STATE).read_bytes())
        parts = [Part(**part) for part in state["parts"]]
    except (OSError, ValueError, TypeError, KeyError):
        return {}, []
    if state.get("version") != _VERSION:
        return {}, []
    if not all(f.exists() for p in parts for f in _files(directory / p.file)):
        return {}, []
    return state["marks"], parts


def _save(directory: Path, marks: dict[str, int], parts: list[Part]) -> None:
    staged = directory / f".{_STATE}"
    staged.write_text(json.dumps({"version": _VERSION, "marks": marks, "parts": [asdict(p) for p in parts]}))
    staged.rename(directory / _STATE)
