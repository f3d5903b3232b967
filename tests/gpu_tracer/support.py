"""What a tracer has recorded, as a store has it."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from kvwitness.audit.store import Store
from kvwitness.collectors.ring_tail import Tail


def take(rings: Path, store: Store) -> Tail:
    """Bring all that is in the rings into the store; the tail, closed, with its account of them."""
    with Tail(rings, store) as tail:
        tail.once()
    return tail


def rows(store: Store, sources: Collection[str] | None = None) -> list[dict[str, Any]]:
    """The store's events in order of source and number, without what is null."""
    events = store.events().sort("source", "seq")
    if sources is not None:
        events = events.filter(pl.col("source").is_in(list(sources)))
    frame = events.drop("ingest", "ingest_row", "segment", strict=False).collect()
    return [{name: value for name, value in row.items() if value is not None} for row in frame.to_dicts()]


@functools.cache
def _store() -> tuple[Store, tempfile.TemporaryDirectory[str]]:
    directory = tempfile.TemporaryDirectory()
    return Store.create(Path(directory.name) / "store"), directory


def recorded(rings: Path) -> list[dict[str, Any]]:
    """The events of all rings in a directory, by way of a store that is kept for this: to make one takes longer."""
    store = _store()[0]
    tail = take(rings, store)
    return rows(store, [followed.ring.source for followed in tail.rings.values()])
