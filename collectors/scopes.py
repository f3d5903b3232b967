"""Two records under the same names: a file whose numbers a store has already gets names of its own.

`dec-1/0` number 7 is one event. Where a file brings another one, its engine is another engine that has the same name:
of another deployment, or of a life before a restart. Mixed, the pages of one would be judged by the writes of the
other, and innocent requests accused. So every name in the file that stands for something of that engine's world gets
a mark: `dec-1@3f9a1c/0`, `r1003@3f9a1c`. Tenants are the same people everywhere, and keep their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kvwitness.audit.store import Store

PLACES = ("source", "pool", "src_pool", "dst_pool", "to_pool", "engine", "answered_by")
"""Columns of names that begin with an engine's."""
IDS = ("request", "transfer", "slot", "marker")
"""Columns of names that an engine gives."""

Spans = dict[str, tuple[int, int]]
"""Source -> lowest and highest number."""


def mark_of(sha256: str) -> str:
    """The mark of a file follows from its bytes, so that it is the same in every store."""
    return f"@{sha256[:6]}"


def marked_place(name: str, mark: str) -> str:
    """`dec-1/0/full` -> `dec-1@3f9a1c/0/full`."""
    engine, slash, rest = name.partition("/")
    return f"{engine}{mark}{slash}{rest}"


def marked(batch: pa.RecordBatch, mark: str) -> pa.Table:
    """The events with names of their own; an event of nobody belongs to a nobody of its own."""
    table = pa.Table.from_batches([batch])
    source = pc.fill_null(table.column("source"), "")
    table = table.set_column(table.schema.get_field_index("source"), table.schema.field("source"), source)
    for column in (*PLACES, *IDS):
        names = table.column(column).combine_chunks().dictionary_encode()
        told = [marked_place(n, mark) if column in PLACES else f"{n}{mark}" for n in names.dictionary.to_pylist()]
        values = pa.array(told, pa.string()).take(names.indices)
        field = table.schema.get_field_index(column)
        table = table.set_column(field, table.schema.field(column), pa.chunked_array([values]))
    return table


def marked_report(report: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """What the reader counted, with the names of sources as they are kept."""
    lines = {
        name: [line | {"source": marked_place(line["source"] or "", mark)} for line in report[name]]
        for name in ("unread", "rejected_seqs")
        if name in report
    }
    return {**report, **lines, "mark": mark}


def spans_of(batch: pa.RecordBatch, spans: Spans) -> None:
    """Widen the numbers that each source used by those of a batch."""
    own = pl.DataFrame({name: pl.Series(batch.column(name)) for name in ("source", "seq")}).drop_nulls("seq")
    used = own.group_by(pl.col("source").fill_null("")).agg(low=pl.col("seq").min(), high=pl.col("seq").max())
    for source, low, high in used.iter_rows():
        known = spans.get(source, (low, high))
        spans[source] = (min(low, known[0]), max(high, known[1]))


def overlapping(store: Store, spans: Spans) -> list[str]:
    """Sources of a file that have numbers within those that the store has of them."""
    found = set()
    readable, _ = store.snapshot().described()  # what is damaged has names that nobody can read
    for segment in readable:
        for source, span in segment.sources.items():
            low, high = spans.get(source or "", (1, 0))
            if span.first is not None and span.last is not None and low <= span.last and span.first <= high:
                found.add(source or "")
    return sorted(found)


def colliding(store: Store, batches: Iterable[pa.RecordBatch], sources: list[str]) -> Iterator[str]:
    """Those of the sources that have an event in the store under a number that the batches use as well."""
    named = pl.col("source").fill_null("")
    numbered = pl.col("seq").is_not_null() & named.is_in(sources)
    kept = store.events(["source", "seq"]).with_columns(named).filter(numbered).unique().collect()
    for batch in batches:
        frame = pl.DataFrame({name: pl.Series(batch.column(name)) for name in ("source", "seq")}).with_columns(named)
        yield from frame.join(kept, on=["source", "seq"], how="semi")["source"].unique().to_list()
