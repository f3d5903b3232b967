"""What happens to every batch on its way in, whoever brings it: check, pseudonyms, numbering, measuring."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kvwitness.audit.store.pseudonyms import Pseudonyms
from kvwitness.audit.store.schema import event_columns, with_ingest
from kvwitness.audit.store.stats import Clocks, Stats, measure

PIECE_ROWS = 131_072
"""Batches are taken in pieces of at most this many rows, so that memory stays bounded."""
ROWS_PER_SEGMENT = 1 << 24
"""`ingest_row` counts from (segment number) * this; no segment has more rows when it comes in."""


class Intake:
    """Prepares events for one ingest: a writer or an import."""

    def __init__(self, ingest: str, pseudonyms: Pseudonyms | None) -> None:
        self.ingest = ingest
        self._pseudonyms = pseudonyms
        self._clocks = Clocks()

    def checked(self, batch: pa.Table | pa.RecordBatch) -> Iterator[pa.Table]:
        """Pieces of the batch in exactly EVENT_SCHEMA, tenants replaced where the store keeps pseudonyms.

        Raises StoreError before the first piece when the batch does not fit the schema.
        """
        table = event_columns(batch)
        for start in range(0, table.num_rows, PIECE_ROWS):
            piece = table.slice(start, PIECE_ROWS)
            yield self._pseudonyms.apply(piece) if self._pseudonyms is not None else piece

    def numbered(self, events: pa.Table, segment: int, row: int) -> tuple[pa.Table, Stats, Clocks]:
        """Rows of the store from checked events that begin at `row` of the ingest's segment number `segment`.

        Also their statistics, and the clocks as they are after these rows: give them to `accept` once the
        rows are written.
        """
        table = with_ingest(events, self.ingest, segment * ROWS_PER_SEGMENT + row)
        clocks = self._clocks.copy()
        return table, measure(table, clocks), clocks

    def accept(self, clocks: Clocks) -> None:
        """The rows that `numbered` prepared are written; the next ones follow them."""
        self._clocks = clocks
