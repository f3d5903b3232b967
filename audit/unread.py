"""Where lines that could not be read leave a loss: such a line may have been the write that a read relies on.

A line that is refused at the door is as lost as one that never came. Mostly the numbers of its source show where; this
module finds the place of the others, as narrowly as the file allows, and widely where it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from kvwitness.audit.relations import REJECTED_SCHEMA

Unread = tuple[str | None, int | None, int]
"""Source and `seq` of a line as far as they could be read, and how many events of its file came before it."""
Place = tuple[str, int | None, int | None, int | None]
"""A row of `REJECTED_SCHEMA`."""


@dataclass(frozen=True, eq=False)
class _Source:
    """The events of one source in a file, in the order of the file."""

    name: str
    rows: npt.NDArray[np.int64]
    times: list[int]
    seqs: list[int | None]
    numbered: bool

    def around(self, row: int) -> tuple[int | None, int | None]:
        """Its last event before a place in the file and its first after it, as indices; None where there is none."""
        after = int(np.searchsorted(self.rows, row))
        return (after - 1 if after else None), (after if after < len(self.rows) else None)

    def shows_hole(self, row: int) -> bool:
        """Whether its own numbers say that something is missing there."""
        before, after = self.around(row)
        if not self.numbered or after is None:
            return False
        last = 0 if before is None else self.seqs[before] or 0
        return (self.seqs[after] or 0) - last > 1

    def goes_on(self, row: int) -> bool:
        """Whether its numbers prove that no line of it was there."""
        after = self.around(row)[1]
        return self.numbered and after is not None and not self.shows_hole(row)

    def place(self, row: int) -> Place:
        """The loss between its events there: by the number that must have come next, else by their times."""
        before, after = self.around(row)
        if self.numbered and after is None:
            return self.name, max(seq or 0 for seq in self.seqs) + 1, None, None
        first = None if before is None else self.times[before]
        last = None if after is None else self.times[after]
        return self.name, None, first, last


def losses_of(lines: Iterable[Unread], events: pl.DataFrame) -> pl.DataFrame | None:
    """The losses that unread lines of one file leave, in `REJECTED_SCHEMA`; None without any.

    `events` are what was read of the file, in its order: `row` (from 0), `source`, `seq`, `time_ns`.
    """
    unread = list(lines)
    if not unread:
        return None
    sources = {source.name: source for source in _sources(events)}
    places = dict.fromkeys(place for line in unread for place in _places(line, sources))
    return pl.DataFrame(list(places), schema=REJECTED_SCHEMA, orient="row")


def _sources(events: pl.DataFrame) -> Iterator[_Source]:
    named = events.with_columns(pl.col("source").fill_null(""))
    for (name,), own in named.group_by("source", maintain_order=True):
        numbered = own["seq"].null_count() == 0
        at = own["row"].to_numpy().astype(np.int64)
        yield _Source(str(name), at, own["time_ns"].to_list(), own["seq"].to_list(), numbered)


def _places(line: Unread, sources: dict[str, _Source]) -> list[Place]:
    name, seq, row = line
    known = sources.get(name or "")
    if known is not None and known.numbered and seq is not None:
        return [(known.name, seq, None, None)]
    if known is not None and name is not None:
        return [] if known.shows_hole(row) else [known.place(row)]
    if name is None and any(source.shows_hole(row) for source in sources.values()):
        return []
    # Whoever may have written it: those whose numbers do not go on there, else a source of which nothing else is left.
    able = [source for source in sources.values() if name is None and not source.goes_on(row)]
    return [source.place(row) for source in able or sources.values()]
